#include "machine.hpp"

#include "gpufs/machine.hpp"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace gpufs::python {
namespace {

nb::dict describe(const gpu_facts& gpu) {
  nb::dict d;
  d["ordinal"] = gpu.ordinal;
  d["name"] = gpu.name;
  d["pci_address"] = gpu.pci_address;
  d["compute_capability"] =
      std::to_string(gpu.capability_major) + "." + std::to_string(gpu.capability_minor);
  d["multiprocessors"] = gpu.multiprocessors;
  d["memory_bytes"] = gpu.memory_bytes;
  d["host_register"] = gpu.host_register;
  d["host_register_read_only"] = gpu.host_register_read_only;
  d["virtual_memory"] = gpu.virtual_memory;
  d["unified_addressing"] = gpu.unified_addressing;
  d["mapped_host_memory"] = gpu.mapped_host_memory;
  d["pageable_memory_access"] = gpu.pageable_memory_access;
  d["host_native_atomics"] = gpu.host_native_atomics;
  d["prohibited"] = gpu.prohibited;
  return d;
}

nb::dict examine_cuda_for_python() {
  cuda_facts facts;
  {
    const nb::gil_scoped_release released;  // may have to wake a GPU
    facts = examine_cuda();
  }
  nb::dict d;
  d["built_version"] = facts.built_version;
  d["driver_version"] = facts.driver_version;
  d["obstacle"] = facts.obstacle;
  nb::list gpus;
  for (const gpu_facts& gpu : facts.gpus) gpus.append(describe(gpu));
  d["gpus"] = gpus;
  return d;
}

nb::dict examine_host_for_python() {
  const host_facts facts = examine_host();
  nb::dict d;
  d["process_vm_readv"] = facts.process_vm_readv;
  d["cachestat"] = facts.cachestat;
  d["io_uring"] = facts.io_uring;
  return d;
}

}  // namespace

void bind_machine(nb::module_& m) {
  m.attr("built_cuda_version") = built_cuda_version();
  m.def("examine_cuda", examine_cuda_for_python);
  m.def("examine_host", examine_host_for_python);
}

}  // namespace gpufs::python
