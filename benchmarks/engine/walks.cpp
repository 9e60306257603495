// Reads through gpufs: one kernel for each way to read. Compiled by nvcc if there is one, otherwise
// by the host compiler.
#include "engine/launch.cuh"

namespace gpufs::bench {

namespace {

void launch_walk(mount& m, const walk& w, const task& work, char* gathered) {
  switch (w.how) {
    case access::map: launch(m, shape_of(m, w), map_chunks<adding>(work)); break;
    case access::map_each: launch(m, shape_of(m, w), map_each_chunk<adding>(work)); break;
    case access::advised_map: launch(m, shape_of(m, w), map_advised_chunks<adding>(work)); break;
    case access::read_by_warp:
      launch(m, shape_with_scratch(m, w), read_chunks<warp_group, adding>(work));
      break;
    case access::read_by_block:
      launch(m, shape_with_scratch(m, w), read_chunks<block_group, adding>(work));
      break;
    case access::view:
      launch(m, shape_of(m, w), view_words<adding, 1>(work, record_shift(w)));
      break;
    case access::view_several:
      launch(m, shape_of(m, w), view_words<adding, 4>(work, record_shift(w)));
      break;
    case access::gather: launch(m, shape_of(m, w), gather_records(work, gathered)); break;
  }
}

// All walks with comparison, in one kernel. ptxas compiles all called functions again for each
// kernel, and a check is not measured.
struct compared_walk : tuned_shape {
  access how;
  task work;
  std::uint32_t shift;
  char* gathered;
  GPUFS_HD compared_walk(access h, const task& t, std::uint32_t s, char* g)
      : how(h), work(t), shift(s), gathered(g) {}
  GPUFS_HD void operator()(const mount_ref& fs) const {
    switch (how) {
      case access::map: map_chunks<comparing>{work}(fs); break;
      case access::map_each: map_each_chunk<comparing>{work}(fs); break;
      case access::advised_map: map_advised_chunks<comparing>{work}(fs); break;
      case access::read_by_warp: read_chunks<warp_group, comparing>{work}(fs); break;
      case access::read_by_block: read_chunks<block_group, comparing>{work}(fs); break;
      case access::view: view_words<comparing, 1>{work, shift}(fs); break;
      case access::view_several: view_words<comparing, 4>{work, shift}(fs); break;
      case access::gather: gather_records{work, gathered}(fs); break;
    }
  }
};

std::size_t gathered_bytes(const walk& w) {
  return w.how == access::gather ? w.operations * w.chunk_bytes : 0;
}

void check_access(mount& m, const walk& w) {
  check_walk(w);
  if ((w.how == access::map || w.how == access::map_each) &&
      w.chunk_bytes > m.options().page_bytes) {
    throw error(EINVAL, "bench: a mapping ends with its page");
  }
}

}  // namespace

sample read(mount& m, std::int32_t fd, const walk& w) {
  check_access(m, w);
  const told t(m);
  const device_array<char> gathered(m, gathered_bytes(w));
  return timed(m, w, t, [&](std::uint64_t operations) {
    launch_walk(m, w, t.make_task(fd, w, operations), gathered.data());
  });
}

sample check(mount& m, std::int32_t fd, const walk& w) {
  check_access(m, w);
  const told t(m);
  const device_array<char> gathered(m, gathered_bytes(w));
  const task work = t.make_task(fd, w, w.operations);
  const bool reads = w.how == access::read_by_warp || w.how == access::read_by_block;
  launch(m, reads ? shape_with_scratch(m, w) : shape_of(m, w),
         compared_walk(w.how, work, record_shift(w), gathered.data()));
  if (w.how == access::gather) launch(m, shape_of(m, w), check_copy(work, gathered.data()));
  m.synchronize();
  sample s;
  s.wrong_bytes = t.wrong_bytes();
  return s;
}

}  // namespace gpufs::bench
