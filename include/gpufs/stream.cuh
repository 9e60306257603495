// file_stream: a file with a position, lines, tokens and formatted output, for a group.
#pragma once

#include "gpufs/gpufs.cuh"
#include "gpufs/text/find.cuh"
#include "gpufs/text/format.cuh"

namespace gpufs {

// A line or a token: text in the stream's buffer, valid until the next call of the stream.
struct text_piece {
  text_span text;
  // The buffer was full before the end of the text; the next call continues with the rest.
  bool cut;
};

// A file with a position of the group. All calls are collective, also the constructor, and return
// >= 0 or -errno.
//
// Each member has its own object, which must not lie in memory that other members see. The stream
// owns neither the descriptor nor the buffer; `fs`, the descriptor and the buffer must outlive it.
// All writes go to the cache at once, so there is nothing to flush. With O_APPEND the position is
// for reads only.
template <class Group>
class file_stream {
 public:
  // The position starts at 0. The constructor does not report a bad descriptor; the calls do.
  //   buffer, bytes  memory that all members can read and write: global or shared memory, for a
  //     single thread also its local memory. A line, a token and the text of a print must fit. With
  //     0 bytes only read, write, seek and tell work.
  GPUFS_HD file_stream(const Group& g, const mount_ref& fs, std::int32_t fd, void* buffer,
                       std::uint64_t bytes)
      : g_(g), fs_(fs), fd_(fd), buffer_(static_cast<char*>(buffer)), buffer_bytes_(bytes),
        slack_(slack_of(bytes)), text_(buffer_) {
    const detail::found_file found = detail::find_to_write(fs, g, fd, access_read | access_write);
    appends_ = found.error == 0 && (found.view.access & access_append) != 0;
  }
  file_stream(const file_stream&) = delete;
  file_stream& operator=(const file_stream&) = delete;

  GPUFS_HD std::int64_t tell() const { return position_; }

  // Moves the position, as lseek(2): relative to the start (SEEK_SET), the position (SEEK_CUR), or
  // the end of the file (SEEK_END). Drops the text in the buffer, so that later calls read the file
  // again. Returns the new position. Errors: -EBADF; -EINVAL, another `whence` or a position before
  // the start; -EOVERFLOW. Does not wait.
  GPUFS_HD std::int64_t seek(std::int64_t offset, std::int32_t whence) {
    file_status status{};
    const std::int32_t error = gfstat(g_, fs_, fd_, status);
    if (error < 0) return error;
    if (whence != SEEK_SET && whence != SEEK_CUR && whence != SEEK_END) return -EINVAL;
    const std::int64_t from = whence == SEEK_SET   ? 0
                              : whence == SEEK_CUR ? position_
                                                   : static_cast<std::int64_t>(status.size);
    constexpr std::int64_t largest = static_cast<std::int64_t>(~std::uint64_t{0} >> 1);
    if (offset > largest - from) return -EOVERFLOW;
    if (from + offset < 0) return -EINVAL;
    position_ = from + offset;
    forget_text();
    return position_;
  }

  // As gread and gwrite, at the position; the position moves past the bytes. With O_APPEND a write
  // goes to the end of the file, and the position stays. `to` must not lie in the stream's buffer.
  // (POSIX read, write.)
  [[nodiscard]] GPUFS_HD std::int64_t read(void* to, std::uint64_t bytes) {
    const std::int64_t n = gread(g_, fs_, fd_, to, bytes, position_);
    if (n > 0) skip(static_cast<std::uint64_t>(n));
    return n;
  }
  [[nodiscard]] GPUFS_HD std::int64_t write(const void* from, std::uint64_t bytes) {
    forget_text();
    const std::int64_t n = gwrite(g_, fs_, fd_, from, bytes, position_);
    if (n > 0 && !appends_) position_ += n;
    return n;
  }

  // Writes formatted text (format_text) at the position. With O_APPEND the text of one call is in
  // one piece in the file, even if other groups append too. Neither the format nor an argument may
  // lie in the buffer.
  //
  // Returns the bytes written. If they are fewer than the text has (see gwrite), the buffer still
  // holds the rest after them. Errors: as format_text (the text and a terminating zero must fit
  // into the buffer), and then nothing is written; as gwrite. Waits as gwrite. (POSIX fprintf.)
  template <class... Arguments>
  [[nodiscard]] GPUFS_HD std::int64_t print(const char* format, const Arguments&... arguments) {
    forget_text();
    const std::int64_t bytes = format_text(g_, buffer_, buffer_bytes_, format, arguments...);
    return bytes < 0 ? bytes : write(buffer_, static_cast<std::uint64_t>(bytes));
  }

  // Reads the next line into the buffer. `line` excludes the newline (`end`), but includes a
  // carriage return before it. Lines of up to the buffer's bytes less one are not cut (less 16 for
  // buffers of 512 bytes or more, because reads are aligned as the file is). The last line may have
  // no newline.
  //
  // Returns the bytes consumed, including the newline, > 0; 0 at the end of the file. Errors: as
  // gread, if the line cannot be read to its end, and then the position stays before the line;
  // -EINVAL without a buffer. Waits as gread. (POSIX getline.)
  [[nodiscard]] GPUFS_HD std::int64_t read_line(text_piece& line, char end = '\n') {
    return take(line, 1, [&](text_span text) { return find_byte(g_, text, end); });
  }

  // Skips delimiters and reads the next token: the bytes up to the next of `delimiters`. The
  // position moves to the end of the token.
  //
  // Returns the bytes of the token, > 0; 0 if there is none before the end of the file. If the
  // token is cut, at least one of its bytes is left for the next call. Errors and waits: as
  // read_line; -EINVAL also for a cut token in a buffer of one byte. (C strtok, for a file.)
  [[nodiscard]] GPUFS_HD std::int64_t read_token(const byte_set& delimiters, text_piece& token) {
    token = {};
    for (bool found = false; !found;) {
      const searched_text between =
          look_for([&](text_span text) { return find_of_set(g_, text, delimiters, false); });
      if (between.error != 0) return between.error;
      skip(between.bytes);
      found = between.end == searched_text::found;
      if (between.end == searched_text::at_file_end) return 0;
    }
    return take(token, 0, [&](text_span text) { return find_of_set(g_, text, delimiters, true); });
  }
  [[nodiscard]] GPUFS_HD std::int64_t read_token(const char* delimiters, text_piece& token) {
    return read_token(byte_set(delimiters), token);
  }

 private:
  // Where a search stopped. The buffer holds all of its bytes.
  struct searched_text {
    enum where : std::uint32_t { found, at_file_end, buffer_full };
    std::uint64_t bytes;
    std::int32_t error;
    where end;
  };

  // Bytes of the buffer that stay unused so that the text can start with the alignment that it has
  // in the file; then it is copied in vectors.
  GPUFS_HD static constexpr std::uint64_t slack_of(std::uint64_t bytes) {
    return bytes >= 512 ? 15 : 0;
  }

  GPUFS_HD void forget_text() { text_bytes_ = 0; }
  GPUFS_HD void skip(std::uint64_t bytes) {
    position_ += static_cast<std::int64_t>(bytes);
    const std::uint64_t kept = bytes < text_bytes_ ? bytes : text_bytes_;
    text_ += kept;
    text_bytes_ -= kept;
  }

  // Searches from the position on, until `find` finds something.
  template <class Find>
  GPUFS_HD searched_text look_for(const Find& find) {
    if (buffer_ == nullptr || buffer_bytes_ == 0) return {0, -EINVAL, searched_text::found};
    for (;;) {
      const std::uint64_t at = find(text_span{text_, text_bytes_});
      if (at != not_found) return {at, 0, searched_text::found};
      if (text_bytes_ == buffer_bytes_ - slack_)
        return {text_bytes_, 0, searched_text::buffer_full};
      const std::int64_t n = fill();
      if (n < 0) return {0, static_cast<std::int32_t>(n), searched_text::found};
      if (n == 0) return {text_bytes_, 0, searched_text::at_file_end};
    }
  }

  // Reads more of the file, so that the text in the buffer starts at the position. The start of a
  // line at the end of the buffer is read again; moving it would cost as much. Returns as gread.
  GPUFS_HD std::int64_t fill() {
    const std::uint64_t offset =
        static_cast<std::uint64_t>(position_) - reinterpret_cast<std::uintptr_t>(buffer_);
    char* const begin = buffer_ + (offset & slack_);
    if (text_ != begin) forget_text();
    text_ = begin;
    g_.sync();  // The other members no longer use the old text.
    const std::int64_t n =
        gread(g_, fs_, fd_, text_ + text_bytes_, buffer_bytes_ - slack_ - text_bytes_,
              position_ + static_cast<std::int64_t>(text_bytes_));
    if (n > 0) text_bytes_ += static_cast<std::uint64_t>(n);
    return n;
  }

  // Consumes the text before what `find` finds, and `behind` bytes of what it finds. If `behind` is
  // 0, a cut piece leaves one byte, so that the next call sees that the piece continues.
  template <class Find>
  GPUFS_HD std::int64_t take(text_piece& piece, std::uint64_t behind, const Find& find) {
    piece = {};
    const searched_text got = look_for(find);
    if (got.error != 0) return got.error;
    const bool cut = got.end == searched_text::buffer_full;
    const std::uint64_t left = cut && behind == 0 ? 1 : 0;
    if (got.bytes == left && cut) return -EINVAL;
    piece = {{text_, got.bytes - left}, cut};
    const std::uint64_t taken = got.bytes - left + (got.end == searched_text::found ? behind : 0);
    skip(taken);
    return static_cast<std::int64_t>(taken);
  }

  const Group g_;
  const mount_ref& fs_;
  const std::int32_t fd_;
  bool appends_ = false;
  char* const buffer_;
  const std::uint64_t buffer_bytes_;
  const std::uint64_t slack_;
  std::int64_t position_ = 0;
  // The known text of the file from the position on; a part of the buffer.
  char* text_;
  std::uint64_t text_bytes_ = 0;
};

}  // namespace gpufs
