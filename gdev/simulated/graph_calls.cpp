/** The simulated driver: graphs that have memory nodes only, and captures of them. */
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "simulated/captures.hpp"
#include "simulated/exports.hpp"

namespace gdev::simulated {

namespace {

struct graph {
  std::vector<std::unique_ptr<std::size_t>> nodes;  // bytes
};

/** An executable graph: its memory comes when it is uploaded or launched. */
struct executable {
  std::size_t blocks = 0;
  chunk memory;
};

std::mutex mutex;  // guards all below
std::vector<chunk> cached;
std::vector<executable*> executables;
/** A capture: of the stream in which it began, and of those that have joined it. */
struct capture {
  graph* to = nullptr;
  CUstream origin = nullptr;
  CUcontext context = nullptr;
  bool is_valid = true;
};
std::map<CUstream, std::shared_ptr<capture>> captures;

/** Ends a capture in all its streams. `mutex` is held. */
void end(const std::shared_ptr<capture>& which) {
  std::erase_if(captures, [&](const auto& one) { return one.second == which; });
}

graph& of(CUgraph handle) noexcept { return *reinterpret_cast<graph*>(handle); }
executable& of(CUgraphExec handle) noexcept { return *reinterpret_cast<executable*>(handle); }

CUgraphNode add_node(graph& to, std::size_t bytes) {
  to.nodes.push_back(std::make_unique<std::size_t>(bytes));
  return reinterpret_cast<CUgraphNode>(to.nodes.back().get());
}

/** Gives a graph its memory: what is cached, or more. */
CUresult upload(executable& which) {
  const std::lock_guard lock(mutex);
  if (!which.memory.blocks.empty()) {
    return CUDA_SUCCESS;
  }
  const auto found = std::find_if(cached.begin(), cached.end(), [&](const chunk& one) {
    return one.blocks.size() >= which.blocks;
  });
  if (found == cached.end()) {
    return the_device().take(current_gpu(), which.blocks, which.memory);
  }
  which.memory = std::move(*found);
  cached.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

bool capture_allocation(CUstream where, std::size_t bytes, CUdeviceptr* address) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(where);
  if (found == captures.end()) {
    return false;
  }
  *address = reinterpret_cast<CUdeviceptr>(add_node(*found->second->to, bytes));
  return true;
}

bool capture_record(event& which, CUstream where) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(where);
  const std::lock_guard event_lock(which.mutex);
  which.captured = found == captures.end() ? nullptr : found->second;
  return which.captured != nullptr;
}

bool join_capture(CUstream where, event& which) {
  const std::lock_guard lock(mutex);
  const std::lock_guard event_lock(which.mutex);
  if (which.captured != nullptr) {
    captures.try_emplace(where, std::static_pointer_cast<capture>(which.captured));
  }
  return which.captured != nullptr;
}

void end_capture_of(CUstream ended) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(ended);
  if (found == captures.end()) {
    return;
  }
  const std::shared_ptr<capture> of = found->second;
  of->is_valid = false;
  captures.erase(found);
  if (of->origin == ended) {
    end(of);
  }
}

void end_captures_of(CUcontext ended) {
  const std::lock_guard lock(mutex);
  std::erase_if(captures, [ended](const auto& one) { return one.second->context == ended; });
}

}  // namespace gdev::simulated

using namespace gdev::simulated;

GDEV_EXPORT(cuGraphCreate, CUgraph* made, unsigned /*flags*/) {
  *made = reinterpret_cast<CUgraph>(new graph);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphDestroy, CUgraph ended) {
  delete &of(ended);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphAddMemAllocNode, CUgraphNode* made, CUgraph to,
            const CUgraphNode* /*dependencies*/, std::size_t /*count*/,
            CUDA_MEM_ALLOC_NODE_PARAMS* wanted) {
  *made = add_node(of(to), wanted->bytesize);
  wanted->dptr = reinterpret_cast<CUdeviceptr>(*made);  // nothing is at this address
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphGetNodes, CUgraph asked, CUgraphNode* nodes, std::size_t* count) {
  const auto& all = of(asked).nodes;
  for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, all.size()); ++i) {
    nodes[i] = reinterpret_cast<CUgraphNode>(all[i].get());
  }
  *count = all.size();
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphNodeGetType, CUgraphNode /*node*/, CUgraphNodeType* type) {
  *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphMemAllocNodeGetParams, CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* found) {
  *found = {};
  found->bytesize = *reinterpret_cast<std::size_t*>(node);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphInstantiateWithFlags, CUgraphExec* made, CUgraph from,
            unsigned long long /*flags*/) {
  auto* const owner = new executable;
  for (const auto& bytes : of(from).nodes) {
    owner->blocks += (*bytes + block_bytes - 1) / block_bytes;
  }
  const std::lock_guard lock(mutex);
  executables.push_back(owner);
  *made = reinterpret_cast<CUgraphExec>(owner);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuGraphUpload, CUgraphExec which, CUstream /*where*/) { return upload(of(which)); }

GDEV_EXPORT(cuGraphLaunch, CUgraphExec which, CUstream /*where*/) { return upload(of(which)); }

GDEV_EXPORT(cuGraphExecDestroy, CUgraphExec ended) {
  const std::lock_guard lock(mutex);
  if (!of(ended).memory.blocks.empty()) {
    cached.push_back(std::move(of(ended).memory));
  }
  std::erase(executables, &of(ended));
  delete &of(ended);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceGetGraphMemAttribute, CUdevice /*device*/, CUgraphMem_attribute /*which*/,
            void* value) {
  const std::lock_guard lock(mutex);
  std::size_t blocks = 0;
  for (const chunk& one : cached) {
    blocks += one.blocks.size();
  }
  for (const executable* const one : executables) {
    blocks += one->memory.blocks.size();
  }
  *static_cast<cuuint64_t*>(value) = blocks * block_bytes;
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuDeviceGraphMemTrim, CUdevice /*device*/) {
  const std::lock_guard lock(mutex);
  cached.clear();
  for (executable* const one : executables) {
    one->memory = {};  // no graph runs
  }
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuStreamBeginCapture, CUstream where, CUstreamCaptureMode /*mode*/) {
  const std::lock_guard lock(mutex);
  if (captures.contains(where)) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  captures[where] = std::make_shared<capture>(capture{new graph, where, current_context()});
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuStreamEndCapture, CUstream where, CUgraph* made) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(where);
  if (found == captures.end()) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  const std::shared_ptr<capture> of = found->second;
  *made = nullptr;
  if (of->origin != where) {
    of->is_valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  end(of);
  if (!of->is_valid) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *made = reinterpret_cast<CUgraph>(of->to);
  return CUDA_SUCCESS;
}

GDEV_EXPORT(cuStreamIsCapturing, CUstream where, CUstreamCaptureStatus* status) {
  const std::lock_guard lock(mutex);
  const auto found = captures.find(where);
  *status = found == captures.end()   ? CU_STREAM_CAPTURE_STATUS_NONE
            : found->second->is_valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                      : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}
