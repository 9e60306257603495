// file_stream: a file with a position, lines, tokens and formatted output, for a group.
#pragma once

#include "gpufs/gpufs.cuh"
#include "gpufs/text/find.cuh"
#include "gpufs/text/format.cuh"

namespace gpufs {

// A line or a token: text in a stream's buffer, until the next call of the stream.
struct text_piece {
  text_span text;
  bool cut;  // the buffer was full before its end was seen: the next call goes on with it
};

// A file with a position, which is the group's own. All calls are collective, also its
// construction, and return >= 0 or -errno. Each member has an object of its own, which must not lie
// in memory that others see. It owns neither the descriptor nor the buffer; `fs`, descriptor and
// buffer must outlive it. All that is written goes to the cache at once: there is nothing to flush.
// Of a descriptor that appends, the position is for reading alone.
template <class Group>
class file_stream {
 public:
  // `buffer`: memory of `bytes` bytes that all members can read and write: global or shared; of a
  // thread, its own too. Lines, tokens and the text of a print must fit there. Without one (0
  // bytes) there is still read, write, seek, tell. The position is 0. A descriptor that is none is
  // found by the calls.
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

  // Moves the position, as lseek(2): from the beginning (SEEK_SET), the position (SEEK_CUR), the
  // end (SEEK_END). Returns the new one. What is read then is looked up anew. Errors: -EBADF;
  // -EINVAL for another `whence`, or a place in front of the file; -EOVERFLOW. Does not wait.
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

  // As gread and gwrite, at the position, which then is behind the bytes. With O_APPEND a write
  // goes to the file's end, and the position stays. (POSIX read, write.) `to` must not lie in the
  // stream's buffer.
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

  // Writes formatted text, as format_text makes it, at the position. With O_APPEND the text of one
  // call is whole in the file, whoever else appends to it. Neither the format nor an argument may
  // lie in the buffer. Returns the bytes written; if those are fewer than the text has, as gwrite,
  // the others are in the buffer behind them. Errors: as format_text (the text and a zero have to
  // fit into the buffer), and then nothing is written; as gwrite. Waits as gwrite. (POSIX fprintf.)
  template <class... Arguments>
  [[nodiscard]] GPUFS_HD std::int64_t print(const char* format, const Arguments&... arguments) {
    forget_text();
    const std::int64_t bytes = format_text(g_, buffer_, buffer_bytes_, format, arguments...);
    return bytes < 0 ? bytes : write(buffer_, static_cast<std::uint64_t>(bytes));
  }

  // Reads the next line into the buffer. `line` has it without its newline (`end`); a carriage
  // return in front of that is part of it. Lines of up to the buffer's bytes less one come whole
  // (of 512 bytes or more less 16, so that reads are aligned as the file is). A last line may have
  // no newline. Returns the bytes taken, with the newline, > 0; 0 at the file's end. Errors: as
  // gread, of a line that cannot be read to its end, and the position stays in front of it; -EINVAL
  // without a buffer. Waits as gread. (POSIX getline.)
  [[nodiscard]] GPUFS_HD std::int64_t read_line(text_piece& line, char end = '\n') {
    return take(line, 1, [&](text_span text) { return find_byte(g_, text, end); });
  }

  // Reads the next token: bytes that are no `delimiters`, behind any number that are. The position
  // then is right behind it. Returns the token's bytes, > 0; 0 when none comes before the file's
  // end. Of a token that is cut, at least one byte is left for the next call. Errors and waits as
  // read_line; -EINVAL also for a cut one in a buffer of one byte. (C strtok, of a file.)
  [[nodiscard]] GPUFS_HD std::int64_t read_token(const byte_set& delimiters, text_piece& token) {
    token = {};
    for (bool found = false; !found;) {
      const stretch between =
          look_for([&](text_span text) { return find_of_set(g_, text, delimiters, false); });
      if (between.error != 0) return between.error;
      skip(between.bytes);
      found = between.end == stretch::found;
      if (between.end == stretch::at_file_end) return 0;
    }
    return take(token, 0, [&](text_span text) { return find_of_set(g_, text, delimiters, true); });
  }
  [[nodiscard]] GPUFS_HD std::int64_t read_token(const char* delimiters, text_piece& token) {
    return read_token(byte_set(delimiters), token);
  }

 private:
  // How far a search came. All of it is in the buffer.
  struct stretch {
    enum where : std::uint32_t { found, at_file_end, buffer_full };
    std::uint64_t bytes;
    std::int32_t error;
    where end;
  };

  // Room that is given up so that text can begin wherever it is aligned as in the file: then it is
  // copied in vectors.
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

  // From the position on, to where `find` finds something.
  template <class Find>
  GPUFS_HD stretch look_for(const Find& find) {
    if (buffer_ == nullptr || buffer_bytes_ == 0) return {0, -EINVAL, stretch::found};
    for (;;) {
      const std::uint64_t at = find(text_span{text_, text_bytes_});
      if (at != not_found) return {at, 0, stretch::found};
      if (text_bytes_ == buffer_bytes_ - slack_) return {text_bytes_, 0, stretch::buffer_full};
      const std::int64_t n = fill();
      if (n < 0) return {0, static_cast<std::int32_t>(n), stretch::found};
      if (n == 0) return {text_bytes_, 0, stretch::at_file_end};
    }
  }

  // Reads on, so that the text in the buffer begins at the position. A line's beginning at the
  // buffer's end is read once more, which costs what it would cost to move it. Returns as gread.
  GPUFS_HD std::int64_t fill() {
    const std::uint64_t offset =
        static_cast<std::uint64_t>(position_) - reinterpret_cast<std::uintptr_t>(buffer_);
    char* const begin = buffer_ + (offset & slack_);
    if (text_ != begin) forget_text();
    text_ = begin;
    g_.sync();  // the others have done with what was in the buffer
    const std::int64_t n =
        gread(g_, fs_, fd_, text_ + text_bytes_, buffer_bytes_ - slack_ - text_bytes_,
              position_ + static_cast<std::int64_t>(text_bytes_));
    if (n > 0) text_bytes_ += static_cast<std::uint64_t>(n);
    return n;
  }

  // Takes what comes before what `find` finds, and `behind` bytes of that. If that is nothing, a
  // byte of a piece that is cut is left: the next call must see that it goes on.
  template <class Find>
  GPUFS_HD std::int64_t take(text_piece& piece, std::uint64_t behind, const Find& find) {
    piece = {};
    const stretch got = look_for(find);
    if (got.error != 0) return got.error;
    const bool cut = got.end == stretch::buffer_full;
    const std::uint64_t left = cut && behind == 0 ? 1 : 0;
    if (got.bytes == left && cut) return -EINVAL;
    piece = {{text_, got.bytes - left}, cut};
    const std::uint64_t taken = got.bytes - left + (got.end == stretch::found ? behind : 0);
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
  // What is known of the file from the position on; a part of the buffer.
  char* text_;
  std::uint64_t text_bytes_ = 0;
};

}  // namespace gpufs
