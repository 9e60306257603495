#include <algorithm>
#include <cerrno>

#include "collage/collage.hpp"
#include "common/owned_file.hpp"

namespace gpufs::collage {

dataset open_dataset(const std::string& folder) {
  dataset made{folder + "/records",
               folder + "/tables",
               {},
               std::vector<hash_function>(table_places::functions_count)};
  const owned_file tables(made.tables), records(made.records);
  header head{};
  tables.read(reinterpret_cast<char*>(&head), sizeof head, 0);
  const bool known =
      std::ranges::equal(head.magic, header::right_magic) && head.version == header::right_version;
  const bool possible = head.tables == table_count && head.tiles != 0 && head.tiles <= tiles_max &&
                        head.bits >= bits_min && head.bits <= bits_max;
  if (!known || !possible)
    throw error(EINVAL, "no tables of a collage dataset, or of another version", made.tables);
  made.places = {head.tiles, head.bits};
  const auto check = [](const owned_file& file, std::uint64_t bytes, const std::string& path) {
    if (file.size() < bytes) throw error(ENODATA, "the file is shorter than it should be", path);
  };
  check(tables, made.places.file_bytes(), made.tables);
  check(records, head.tiles * sizeof(record), made.records);
  tables.read(reinterpret_cast<char*>(made.functions.data()),
              made.functions.size() * sizeof(hash_function), table_places::functions);
  for (const hash_function& f : made.functions) {
    for (const std::uint8_t term : f.terms) {
      if ((term & (hash_function::negative - 1)) >= feature_length)
        throw error(EINVAL, "a hash function of what tiles do not have", made.tables);
    }
  }
  return made;
}

}  // namespace gpufs::collage
