// The types are those of cuda.h, which declares every version and kind of default stream for this.
#define __CUDA_API_VERSION_INTERNAL
#include "interposer/graph_memory.hpp"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/endless.hpp"
#include "base/saturating.hpp"
#include "interposer/client.hpp"
#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/swappable_memory.hpp"
#include "interposer/wrappers.hpp"

namespace gdev {

namespace {

/** The largest memory node of a graph on each device: so much it takes at least. */
using node_sizes = std::map<CUdevice, std::uint64_t>;

/** Adds the memory nodes of a graph, and of those in it. */
void add_nodes(CUgraph graph, node_sizes& found) noexcept {
  std::size_t count = 0;
  if (call_driver<CUresult>(id_cuGraphGetNodes, graph, static_cast<CUgraphNode*>(nullptr),
                            &count) != CUDA_SUCCESS) {
    return;
  }
  std::vector<CUgraphNode> nodes(count);
  if (count == 0 ||
      call_driver<CUresult>(id_cuGraphGetNodes, graph, nodes.data(), &count) != CUDA_SUCCESS) {
    return;
  }
  nodes.resize(std::min(nodes.size(), count));
  for (const CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    CUgraph child = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
    if (call_driver<CUresult>(id_cuGraphNodeGetType, node, &type) != CUDA_SUCCESS) {
      continue;
    }
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        call_driver<CUresult>(id_cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS) {
      add_nodes(child, found);
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
               call_driver<CUresult>(id_cuGraphMemAllocNodeGetParams, node, &wanted) ==
                   CUDA_SUCCESS) {
      std::uint64_t& largest = found[wanted.poolProps.location.id];
      largest = std::max<std::uint64_t>(largest, swappable_memory::physical(wanted.bytesize));
    }
  }
}

std::uint64_t reserved_on(CUdevice device) noexcept {
  cuuint64_t bytes = 0;
  return call_driver<CUresult>(id_cuDeviceGetGraphMemAttribute, device,
                               CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                               static_cast<void*>(&bytes)) == CUDA_SUCCESS
             ? bytes
             : 0;
}

class graph_memory {
 public:
  void add(CUgraphExec graph, node_sizes nodes) {
    if (nodes.empty()) {
      remove(graph);  // one of this address may have ended with its context
      return;
    }
    const std::lock_guard lock(mutex_);
    graphs_[graph] = std::move(nodes);
    count_.store(graphs_.size(), std::memory_order_relaxed);
  }

  /** Forgets a graph. Returns false if it has no memory nodes. */
  bool remove(CUgraphExec graph) {
    if (count_.load(std::memory_order_relaxed) == 0) {
      return false;
    }
    const std::lock_guard lock(mutex_);
    const bool was_there = graphs_.erase(graph) != 0;
    count_.store(graphs_.size(), std::memory_order_relaxed);
    return was_there;
  }

  /** Returns the memory nodes of a graph; usually there are none. */
  node_sizes nodes_of(CUgraphExec graph) {
    if (count_.load(std::memory_order_relaxed) == 0) {
      return {};
    }
    const std::lock_guard lock(mutex_);
    const auto found = graphs_.find(graph);
    return found == graphs_.end() ? node_sizes{} : found->second;
  }

  /** Takes what a graph needs of the account at least. Returns false: the limit. */
  bool reserve(const node_sizes& nodes) {
    const std::lock_guard lock(growing_);
    return std::all_of(nodes.begin(), nodes.end(),
                       [this](const auto& one) { return grow(one.first, one.second); });
  }

  /** Takes what the pools have of the account, or gives it back. Returns false: the limit. */
  bool settle(const node_sizes& nodes) {
    const std::lock_guard lock(growing_);
    return std::all_of(nodes.begin(), nodes.end(), [this](const auto& one) {
      const std::uint64_t bytes = reserved_on(one.first);
      shrink(one.first, bytes);
      return grow(one.first, bytes);
    });
  }

  /** Gives back what pools have no more. */
  void settle_less() {
    std::vector<CUdevice> devices;
    {
      const std::lock_guard lock(charging_);
      for (const auto& [device, of] : pools_) {
        devices.push_back(device);
      }
    }
    for (const CUdevice device : devices) {
      shrink(device, reserved_on(device));
    }
  }

 private:
  struct pool {
    std::uint64_t bytes = 0;  // of the account
    memory_place place = memory_place::here;
  };

  /** Takes what lacks of so many bytes. `growing_` is held. Returns false: the limit. */
  bool grow(CUdevice device, std::uint64_t bytes) {
    std::unique_lock lock(charging_);
    pool& of = pools_[device];  // no entry is ever erased
    if (of.bytes == 0) {
      of.place = swappable().place_on(device);
    }
    const std::uint64_t lacking = less(bytes, of.bytes);
    const memory_place place = of.place;
    lock.unlock();  // it may have to wait for what another thread gives back
    if (lacking != 0 && use_memory(lacking, place) != 0) {
      return false;
    }
    lock.lock();
    of.bytes += lacking;
    return true;
  }

  /** Gives back what is beyond so many bytes. */
  void shrink(CUdevice device, std::uint64_t bytes) {
    const std::lock_guard lock(charging_);
    pool& of = pools_[device];
    if (bytes < of.bytes) {
      free_memory(of.bytes - bytes, of.place);
      of.bytes = bytes;
    }
  }

  std::mutex growing_;   // held while use_memory() waits, before charging_
  std::mutex charging_;  // guards pools_
  std::map<CUdevice, pool> pools_;
  std::mutex mutex_;  // guards graphs_
  std::map<CUgraphExec, node_sizes> graphs_;
  std::atomic<std::size_t> count_{0};
};

endless<graph_memory> only;

/** Gives back what a graph that does not fit has taken. Returns the error. */
CUresult refuse(const node_sizes& nodes) noexcept {
  {
    const submission in_turn(work::other);
    for (const auto& [device, largest] : nodes) {
      static_cast<void>(call_driver<CUresult>(id_cuDeviceGraphMemTrim, device));
    }
  }
  only.get().settle_less();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/** Gets a graph its memory, within the limit. */
template <function_id Upload>
CUresult upload(const node_sizes& nodes, CUgraphExec graph, CUstream stream) noexcept {
  if (!only.get().reserve(nodes)) {
    return refuse(nodes);
  }
  CUresult result = CUDA_SUCCESS;
  {
    const submission in_turn(work::other);
    result = call_driver<CUresult>(Upload, graph, stream);
  }
  return only.get().settle(nodes) ? result : refuse(nodes);
}

template <function_id Id>
CUresult graph_upload(CUgraphExec graph, CUstream stream) noexcept {
  const node_sizes nodes = only.get().nodes_of(graph);
  return nodes.empty() ? call_driver<CUresult>(Id, graph, stream)
                       : upload<Id>(nodes, graph, stream);
}

template <function_id Id, function_id Upload>
CUresult graph_launch(CUgraphExec graph, CUstream stream) noexcept {
  const node_sizes nodes = only.get().nodes_of(graph);
  if (!nodes.empty()) {
    if (const CUresult result = upload<Upload>(nodes, graph, stream); result != CUDA_SUCCESS) {
      return result;
    }
  }
  const submission passed(work::launch);
  return call_driver<CUresult>(Id, graph, stream);
}

template <function_id Id, typename Function>
struct instantiates;

template <function_id Id, typename... Arguments>
struct instantiates<Id, CUresult(CUgraphExec*, CUgraph, Arguments...)> {
  static CUresult call(CUgraphExec* made, CUgraph graph, Arguments... arguments) noexcept {
    const CUresult result = call_driver<CUresult>(Id, made, graph, arguments...);
    if (result != CUDA_SUCCESS || !has_joined()) {
      return result;
    }
    node_sizes nodes;
    add_nodes(graph, nodes);
    if (!nodes.empty() && !only.get().settle(nodes)) {  // it may have been uploaded
      static_cast<void>(call_driver<CUresult>(id_cuGraphExecDestroy, *made));
      return refuse(nodes);
    }
    only.get().add(*made, std::move(nodes));
    return result;
  }
};

CUresult exec_destroy(CUgraphExec graph) noexcept {
  const bool had_memory = only.get().remove(graph);
  const CUresult result = call_driver<CUresult>(id_cuGraphExecDestroy, graph);
  if (had_memory) {
    only.get().settle_less();
  }
  return result;
}

CUresult graph_mem_trim(CUdevice device) noexcept {
  const CUresult result = call_driver<CUresult>(id_cuDeviceGraphMemTrim, device);
  only.get().settle_less();
  return result;
}

}  // namespace

void* graph_wrapper(function_id id) noexcept {
  switch (id) {
#define GDEV_INSTANTIATES(name) \
  case id_##name: return address_of(&instantiates<id_##name, decltype(name)>::call)
    GDEV_INSTANTIATES(cuGraphInstantiate);
    GDEV_INSTANTIATES(cuGraphInstantiate_v2);
    GDEV_INSTANTIATES(cuGraphInstantiateWithFlags);
    GDEV_INSTANTIATES(cuGraphInstantiateWithParams);
    GDEV_INSTANTIATES(cuGraphInstantiateWithParams_ptsz);
#undef GDEV_INSTANTIATES
    case id_cuGraphUpload: return address_of(&graph_upload<id_cuGraphUpload>);
    case id_cuGraphUpload_ptsz: return address_of(&graph_upload<id_cuGraphUpload_ptsz>);
    case id_cuGraphLaunch: return address_of(&graph_launch<id_cuGraphLaunch, id_cuGraphUpload>);
    case id_cuGraphLaunch_ptsz:
      return address_of(&graph_launch<id_cuGraphLaunch_ptsz, id_cuGraphUpload_ptsz>);
    case id_cuGraphExecDestroy: return address_of(&exec_destroy);
    case id_cuDeviceGraphMemTrim: return address_of(&graph_mem_trim);
    default: return nullptr;
  }
}

void note_less_graph_memory() noexcept { only.get().settle_less(); }

void forget_graph_memory() noexcept { only.forget(); }

}  // namespace gdev
