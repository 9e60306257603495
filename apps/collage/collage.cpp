// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "collage/collage.hpp"

#include "collage/checks.hpp"
#include "collage/memory.hpp"
#include "collage/order.hpp"

namespace gpufs::collage {

summary make_collage(mount& m, const dataset& from, const block_picture& picture,
                     const tiles_found& to) {
  check(m, picture);
  const plan p(m, from, picture);
  // Without `alone`, so without the bulk path: it does not help random reads.
  const job::job work(m, "not what a collage dataset holds", {from.records, from.tables}, false);
  const picture_memory memory(m, p, from);
  for (std::uint32_t row = 0; row < p.rows; row += p.band_rows) {
    memory.send(picture, row);  // while a kernel works on the previous rows
    if (p.ordered) put_in_order(work, p, memory.data());
    work.launch(find_tiles(work, p, memory.data(), row), p.band_blocks(row), p.most,
                sizeof(block_memory), p.threads);
  }
  work.finish();
  return memory.bring(to);
}

}  // namespace gpufs::collage
