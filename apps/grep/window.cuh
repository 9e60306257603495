// A window over a file's text that moves forward, in a block's scratch memory.
//
// The window holds the character before the text that is searched next. It also holds
// `lookahead_bytes` after that text, unless the file ends. So the window alone decides every match
// that begins in the searched part.
#pragma once

#include "dictionary_table.hpp"
#include "gpufs/gpufs.cuh"

namespace gpufs::grep {

inline constexpr std::uint32_t lookahead_bytes =
    256;  // the longest word, and the character after it
inline constexpr std::uint32_t window_bytes = 8464;
inline constexpr std::uint32_t padding_bytes =
    48;  // zeros after the text, which are no word characters
inline constexpr std::uint32_t segment_bytes = 32;  // one word of `masks`
inline constexpr std::uint32_t window_segments = (window_bytes + padding_bytes) / segment_bytes;
// Windows end at multiples of this, so that source and target of a gread are congruent modulo 16.
inline constexpr std::uint32_t window_end_alignment = 4096;

static_assert((window_bytes + padding_bytes) % segment_bytes == 0,
              "all text is classified in whole segments");
static_assert(window_bytes >= 8192 + lookahead_bytes + 16,
              "a move reads two whole pages: at most 272 bytes are kept");
static_assert(window_bytes - window_end_alignment > 2 * (lookahead_bytes + 16),
              "what is kept does not overlap its new place");

struct window_memory {
  std::uint64_t text[(window_bytes + padding_bytes) / 8];
  std::uint32_t masks[window_segments];  // bit i of word k: byte 32 k + i is a word character
  atomic_word<std::uint32_t> first_nul;  // offset in the window, or no_offset
};

// Reads until all bytes are read, because gread may stop before an error that only its next call
// returns. Returns the bytes read, fewer than `bytes` only at the end of the file; or -errno.
GPUFS_HD inline std::int64_t read_fully(const block_group& g, const mount_ref& fs, std::int32_t fd,
                                        char* to, std::uint64_t bytes, std::uint64_t offset) {
  std::uint64_t done = 0;
  while (done < bytes) {
    const std::int64_t n =
        gread(g, fs, fd, to + done, bytes - done, static_cast<std::int64_t>(offset + done));
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<std::uint64_t>(n);
  }
  return static_cast<std::int64_t>(done);
}

// Members of the group have equal copies. Offsets of type uint32_t are offsets in the window.
class text_window {
 public:
  static constexpr std::uint32_t no_offset = ~std::uint32_t{0};

  GPUFS_HD text_window(const block_group& g, const mount_ref& fs, window_memory& memory,
                       std::int32_t fd, std::uint64_t file_bytes)
      : g_(g), fs_(fs), memory_(memory), fd_(fd), file_bytes_(file_bytes) {}

  GPUFS_HD std::uint64_t begin() const { return begin_; }
  GPUFS_HD std::uint64_t end() const { return begin_ + bytes_; }
  GPUFS_HD bool at_file_end() const { return end() >= file_bytes_; }
  GPUFS_HD bool file_ends_before(std::uint64_t at) const { return at >= file_bytes_; }
  GPUFS_HD const std::uint64_t* text() const { return memory_.text; }
  GPUFS_HD const std::uint32_t* masks() const { return memory_.masks; }

  GPUFS_HD std::uint8_t byte(std::uint32_t at) const {
    return reinterpret_cast<const std::uint8_t*>(memory_.text)[at];
  }

  // Moves to the byte before `from` and reads on. `from` lies in the window or at its end; at the
  // first call it may be anywhere. Returns 0 or -errno. If the file is now shorter than at the
  // open, it was truncated: the text ends there.
  [[nodiscard]] GPUFS_HD std::int32_t move(std::uint64_t from) {
    const std::uint64_t begin = from == 0 ? 0 : (from - 1) / 16 * 16;
    const auto kept = static_cast<std::uint32_t>(bytes_ == 0 ? 0 : end() - begin);
    g_.sync();  // all members are done with the old text
    if (kept != 0 && begin != begin_) {
      const std::uint64_t* source = memory_.text + (begin - begin_) / 8;
      for (std::uint32_t k = g_.rank(); k < (kept + 7) / 8; k += g_.size())
        memory_.text[k] = source[k];
    }
    g_.sync();
    std::uint64_t until = (begin + window_bytes) / window_end_alignment * window_end_alignment;
    if (until > file_bytes_) until = file_bytes_;
    const std::uint64_t at = begin + kept;
    char* to = reinterpret_cast<char*>(memory_.text);
    const std::int64_t n = until > at ? read_fully(g_, fs_, fd_, to + kept, until - at, at) : 0;
    if (n < 0) return static_cast<std::int32_t>(n);
    begin_ = begin;
    bytes_ = kept + static_cast<std::uint32_t>(n);
    if (end() < until) file_bytes_ = end();
    for (std::uint32_t k = g_.rank(); k < padding_bytes; k += g_.size()) to[bytes_ + k] = 0;
    if (g_.is_leader()) memory_.first_nul.store_relaxed(no_offset);
    g_.sync();
    return 0;
  }

  // Folds the case of the text (fold_case), also of text that was folded before the last move.
  // Afterwards all members see the folded text.
  GPUFS_HD void fold() const {
    for (std::uint32_t k = g_.rank(); k < (bytes_ + 7) / 8; k += g_.size())
      memory_.text[k] = fold_case(memory_.text[k]);
    g_.sync();
  }

  // Returns the first offset in [from, to) after a byte of the class `byte_breaks`, or no_offset.
  // from > 0.
  GPUFS_HD std::uint32_t first_break(const std::uint8_t* classes, std::uint32_t from,
                                     std::uint32_t to) const {
    std::uint32_t found = no_offset;
    if (g_.is_leader()) {
      // The leader searches alone: such a byte is near, except in text that is made to avoid it.
      for (std::uint32_t at = from; at < to && found == no_offset; ++at) {
        if ((classes[byte(at - 1)] & byte_breaks) != 0) found = at;
      }
    }
    return g_.broadcast(found);
  }

  // Fills the masks. Returns the offset of the first NUL in [from, to), or no_offset. Afterwards
  // all members see all masks.
  GPUFS_HD std::uint32_t classify(std::uint32_t from, std::uint32_t to) {
    const std::uint32_t segments = (bytes_ + padding_bytes) / segment_bytes;
    for (std::uint32_t segment = g_.rank(); segment < segments; segment += g_.size()) {
      std::uint32_t mask = 0;
      bool zeros = false;
      for (std::uint32_t k = 0; k < segment_bytes / 8; ++k) {
        const std::uint64_t text = memory_.text[segment * (segment_bytes / 8) + k];
        mask |= word_characters(text) << (8 * k);
        zeros |= has_zero_byte(text);
      }
      memory_.masks[segment] = mask;
      if (zeros) note_nul(segment, from, to);
    }
    g_.sync();
    return memory_.first_nul.load_relaxed();
  }

 private:
  GPUFS_HD void note_nul(std::uint32_t segment, std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t at = segment * segment_bytes; at < (segment + 1) * segment_bytes; ++at) {
      if (at < from || at >= to || byte(at) != 0) continue;
      // The smallest offset wins. Relaxed: a barrier comes before it is used.
      std::uint32_t seen = memory_.first_nul.load_relaxed();
      while (at < seen && !memory_.first_nul.compare_exchange_relaxed(seen, at)) {
      }
      return;
    }
  }

  const block_group& g_;
  const mount_ref& fs_;
  window_memory& memory_;
  std::int32_t fd_;
  std::uint64_t file_bytes_;
  std::uint64_t begin_ = 0;  // multiple of 16
  std::uint32_t bytes_ = 0;
};

}  // namespace gpufs::grep
