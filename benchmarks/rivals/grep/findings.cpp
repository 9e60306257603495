#include "rivals/grep/findings.hpp"

#include <algorithm>
#include <tuple>

namespace gpufs::grep {

namespace {

// Of the matches of one word in one file the first counts. After that, the next match counts that
// begins after the end of the last counted match.
findings count_places(std::vector<word_place>& places, const std::vector<std::string>& words) {
  const auto key = [](const word_place& p) { return std::tie(p.file, p.word, p.at); };
  std::sort(places.begin(), places.end(),
            [&](const word_place& a, const word_place& b) { return key(a) < key(b); });
  findings counted;
  for (std::size_t k = 0; k < places.size();) {
    const word_place first = places[k];
    std::uint32_t count = 0;
    std::uint64_t free_from = 0;
    for (; k < places.size() && places[k].file == first.file && places[k].word == first.word; ++k) {
      if (places[k].at < free_from) continue;
      ++count;
      free_from = places[k].at + words[first.word].size();
    }
    counted.sections.push_back({first.file, 1, counted.counts.size()});
    counted.counts.push_back({first.word, count});
  }
  return counted;
}

}  // namespace

result put_together(const dictionary& d, const std::vector<file_item>& files,
                    const file_states& states, std::vector<findings>&& first,
                    std::vector<findings>&& late) {
  result r;
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    if (const int error = states.error(file); error != 0) {
      r.failures.push_back({file, error});
      continue;
    }
    ++r.files;
    if (states.first_nul(file) != no_nul) r.binary.push_back(file);
  }
  const auto is_wanted = [&](std::uint32_t file, bool is_late) {
    return states.error(file) == 0 && (is_late || states.first_nul(file) == no_nul);
  };
  std::vector<file_counts> all;
  const auto add = [&](findings& found, bool is_late) {
    for (const findings::section& s : found.sections) {
      if (is_wanted(s.file, is_late))
        all.push_back({s.file, s.count, found.counts.data() + s.begin});
    }
  };
  std::vector<word_place> places;
  for (std::vector<findings>* round : {&first, &late}) {
    const bool is_late = round == &late;
    for (findings& found : *round) {
      add(found, is_late);
      if (!is_late) r.bytes += found.bytes;
      std::copy_if(found.places.begin(), found.places.end(), std::back_inserter(places),
                   [&](const word_place& p) { return is_wanted(p.file, is_late); });
    }
  }
  findings of_places = count_places(places, d.words());
  add(of_places, true);
  r.matches = merge_counts(all, order_by_path(files), d.words().size());
  return r;
}

}  // namespace gpufs::grep
