#include "interposer/handles.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/endless.hpp"
#include "interposer/driver.hpp"
#include "interposer/gate.hpp"
#include "interposer/pools.hpp"
#include "interposer/swappable_memory.hpp"

namespace gdev {

namespace {

// No address of a process has these bits: they are beyond those of all kernels for x86-64.
constexpr unsigned mark_shift = 48;
constexpr std::uint64_t mark = 0x6764;

endless<virtual_handles> only;

bool is_same(const CUmemLocation& a, const CUmemLocation& b) noexcept {
  return a.type == b.type && a.id == b.id;
}

}  // namespace

virtual_handles& handles() noexcept { return only.get(); }

void forget_handles() noexcept { only.forget(); }

bool virtual_handles::is_virtual(value handle) noexcept { return handle >> mark_shift == mark; }

bool virtual_handles::are_possible(const CUmemAllocationProp& wanted, unsigned long long flags) {
  // What the driver does with other uses, such as pools of tiles, is not known here.
  return wanted.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         wanted.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
         wanted.allocFlags.usage == 0 && flags == 0 && swappable().begin() &&
         swappable().place_on(wanted.location.id) == memory_place::here;
}

/** A reference of a call, which ends the memory if it was the last one. Holds a submission. */
class virtual_handles::user {
 public:
  user(virtual_handles& table, value handle) : table_(table) {
    const std::lock_guard lock(table_.mutex_);
    if (const auto found = table_.all_.find(handle);
        found != table_.all_.end() && found->second.references != 0) {
      ++found->second.references;
      found_ = &*found;
    }
  }
  user(const user&) = delete;
  user& operator=(const user&) = delete;
  ~user() {
    if (found_ != nullptr) {
      end(table_.give(found_->first));
    }
  }

  /** Tells whether the memory is there. It is not if a broken context has lost it. */
  [[nodiscard]] explicit operator bool() const noexcept {
    return found_ != nullptr && found_->second.memory.handle != 0;
  }
  [[nodiscard]] chunk& memory() const noexcept { return found_->second.memory; }

 private:
  virtual_handles& table_;
  entries::value_type* found_ = nullptr;
};

// --- References ---

CUresult virtual_handles::create(value* made, std::size_t bytes, const CUmemAllocationProp& wanted,
                                 std::shared_ptr<holding> held) {
  CUcontext context = nullptr;
  if (made == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (call_driver<CUresult>(id_cuCtxGetCurrent, &context) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  // In its node from the beginning: a chunk must not move.
  entries one;
  {
    const std::lock_guard lock(mutex_);
    one.try_emplace(mark << mark_shift | ++next_,
                    entry{chunk(wanted, bytes, context, held), 1, held});
  }
  const CUresult result = swappable().add(one.begin()->second.memory);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *made = one.begin()->first;
  const std::lock_guard lock(mutex_);
  all_.merge(one);
  return CUDA_SUCCESS;
}

virtual_handles::entries::node_type virtual_handles::give(value handle) {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(handle);
  return --found->second.references == 0 && found->second.memory.mappings.empty()
             ? all_.extract(found)
             : entries::node_type();
}

void virtual_handles::end(entries::node_type gone) {
  if (!gone.empty()) {
    swappable().remove(gone.mapped().memory);
  }
}

CUresult virtual_handles::release(value handle) {
  const memory_pass still;
  {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(handle);
    if (found == all_.end() || found->second.references == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  end(give(handle));
  return CUDA_SUCCESS;
}

virtual_handles::value virtual_handles::retain(CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = first_in(address);
  if (found == mapped_.end() || found->first > address) {
    return 0;
  }
  ++all_.at(found->second.handle).references;
  return found->second.handle;
}

CUresult virtual_handles::properties(CUmemAllocationProp* stored, value handle) {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(handle);
  if (stored == nullptr || found == all_.end()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *stored = found->second.memory.properties;
  return CUDA_SUCCESS;
}

// --- Mappings ---

virtual_handles::places::iterator virtual_handles::first_in(CUdeviceptr address) {
  const auto after = mapped_.upper_bound(address);
  if (after == mapped_.begin()) {
    return after;
  }
  const auto before = std::prev(after);
  return address - before->first < before->second.bytes ? before : after;
}

virtual_handles::places::iterator virtual_handles::end_of(CUdeviceptr address, std::size_t bytes) {
  return bytes > ~address ? mapped_.end() : mapped_.lower_bound(address + bytes);
}

virtual_handles::places virtual_handles::mapped_in(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return {first_in(address), end_of(address, bytes)};
}

bool virtual_handles::has_mapped(CUdeviceptr address, std::size_t bytes) {
  return !mapped_in(address, bytes).empty();
}

mapping* virtual_handles::mapping_at(CUdeviceptr begin) {
  const auto found = mapped_.find(begin);
  if (found == mapped_.end()) {
    return nullptr;
  }
  std::vector<mapping>& all = all_.at(found->second.handle).memory.mappings;
  return &*std::find_if(all.begin(), all.end(),
                        [begin](const mapping& one) { return one.address == begin; });
}

CUresult virtual_handles::map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                              value handle, unsigned long long flags) {
  const submission in_turn(work::other);
  const user of(*this, handle);
  if (!of) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result =
      call_driver<CUresult>(id_cuMemMap, address, bytes, offset, of.memory().handle, flags);
  if (result == CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    of.memory().mappings.push_back({address, {}});
    mapped_[address] = {bytes, handle};
  }
  return result;
}

CUresult virtual_handles::unmap(CUdeviceptr address, std::size_t bytes) {
  const memory_pass still;
  std::vector<std::pair<value, mapping>> taken;
  {
    const std::lock_guard lock(mutex_);
    const auto begin = first_in(address);
    const auto end = end_of(address, bytes);
    const bool is_cut = std::any_of(begin, end, [=](const places::value_type& one) {
      return one.first < address || one.second.bytes > bytes - (one.first - address);
    });
    if (is_cut) {
      return CUDA_ERROR_INVALID_VALUE;  // as the driver
    }
    for (auto one = begin; one != end; one = mapped_.erase(one)) {
      entry& of = all_.at(one->second.handle);
      ++of.references;  // until the end of this call
      mapping* const found = mapping_at(one->first);
      taken.emplace_back(one->second.handle, std::move(*found));
      of.memory.mappings.erase(of.memory.mappings.begin() + (found - of.memory.mappings.data()));
    }
  }
  // Off the GPU too: others may be mapped in the range. Where nothing is, the driver does nothing.
  const CUresult result = call_driver<CUresult>(id_cuMemUnmap, address, bytes);
  for (auto& [handle, one] : taken) {
    if (result != CUDA_SUCCESS) {
      const std::lock_guard lock(mutex_);
      entry& of = all_.at(handle);
      mapped_[one.address] = {of.memory.bytes, handle};
      of.memory.mappings.push_back(std::move(one));
    }
    end(give(handle));
  }
  return result;
}

CUresult virtual_handles::set_access(CUdeviceptr address, std::size_t bytes,
                                     const CUmemAccessDesc* wanted, std::size_t count) {
  const submission in_turn(work::other);
  const CUresult result = call_driver<CUresult>(id_cuMemSetAccess, address, bytes, wanted, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  // The driver says what is so now: of a range with gaps it sets the first part only.
  for (const auto& [begin, unused] : mapped_in(address, bytes)) {
    for (std::size_t i = 0; i < count; ++i) {
      unsigned long long flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
      const CUmemLocation* const where = &wanted[i].location;
      static_cast<void>(call_driver<CUresult>(id_cuMemGetAccess, &flags, where, begin));
      const std::lock_guard lock(mutex_);
      mapping* const found = mapping_at(begin);
      if (found == nullptr) {
        continue;
      }
      std::erase_if(found->access,
                    [&](const CUmemAccessDesc& one) { return is_same(one.location, *where); });
      if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        found->access.push_back({*where, static_cast<CUmemAccess_flags>(flags)});
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult virtual_handles::access(unsigned long long* flags, const CUmemLocation& location,
                                 CUdeviceptr address) {
  const std::lock_guard lock(mutex_);
  const auto found = first_in(address);
  if (flags == nullptr || found == mapped_.end() || found->first > address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  for (const CUmemAccessDesc& one : mapping_at(found->first)->access) {
    if (is_same(one.location, location)) {
      *flags = one.flags;
    }
  }
  return CUDA_SUCCESS;
}

// --- Memory that others know by more than its address ---

CUresult virtual_handles::export_to(void* shared, value handle, CUmemAllocationHandleType type,
                                    unsigned long long flags) {
  const submission in_turn(work::other);
  const user of(*this, handle);
  if (!of) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = call_driver<CUresult>(id_cuMemExportToShareableHandle, shared,
                                                of.memory().handle, type, flags);
  if (result == CUDA_SUCCESS) {
    swappable().wire(of.memory());
  }
  return result;
}

CUresult virtual_handles::wire(value handle, CUmemGenericAllocationHandle* real) {
  const submission in_turn(work::other);
  const user of(*this, handle);
  if (!of) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  swappable().wire(of.memory());
  *real = of.memory().handle;
  return CUDA_SUCCESS;
}

void virtual_handles::wire_mapped(CUdeviceptr address, std::size_t bytes) {
  const submission in_turn(work::other);
  for (const auto& [begin, unused] : mapped_in(address, bytes)) {
    CUmemGenericAllocationHandle real = 0;
    if (const value handle = retain(begin); handle != 0) {  // the program may have released it
      static_cast<void>(wire(handle, &real));
      static_cast<void>(release(handle));
    }
  }
}

void wire_memory(CUdeviceptr address, std::size_t bytes) {
  const submission in_turn(work::other);
  swappable().wire(address);
  handles().wire_mapped(address, bytes);
  pools().wire(address, bytes);
}

}  // namespace gdev
