// Compiled by nvcc if there is one, otherwise by the host compiler.
#include "search/search.hpp"

#include <span>

#include "search/kernels.cuh"

namespace gpufs::search {

void start(const job::job& work, const scan<1>& kernel) { launch(work, kernel); }

namespace {

// `Parts`: parts of a number in the products (distance_error).
template <int Parts>
std::vector<found> search_in(mount& m, const question& q, bool alone) {
  const plan how(job::mount_facts::of(m), q);
  const std::vector<vectors_place> places = places_of(q, how);
  const job::job work(m, "search", paths_of(q), alone, std::as_bytes(std::span(places)),
                      workspace(how, Parts).bytes);
  const workspace all(how, Parts, work.paths(), work.table<vectors_place>(), work.failed(),
                      work.memory());
  work.launch(pack_queries<Parts>{all}, how.pack_blocks, work.few());
  start(work, scan<Parts>{all});
  return work.finish<found>(how.queries * how.length);
}

}  // namespace

std::vector<found> search(mount& m, const question& q, bool alone) {
  check(q);
  if (q.queries.count == 0) return {};
  // The nearest vectors have similar distances. To order them takes more precision than to decide
  // that none is below a threshold.
  return q.top == 0 ? search_in<1>(m, q, alone) : search_in<2>(m, q, alone);
}

}  // namespace gpufs::search
