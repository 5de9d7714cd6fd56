#include "registered_memory.hpp"

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "sync/mutex.hpp"

namespace harp::dpdk {
namespace {

bool contains(std::span<const std::byte> outer, std::span<const std::byte> inner) {
  return inner.data() >= outer.data() && inner.data() + inner.size() <= outer.data() + outer.size();
}

/// The whole pages that hold `memory`.
std::pair<std::byte*, std::size_t> pages_of(std::span<const std::byte> memory) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory.data()) / page * page;
  const std::uintptr_t end =
      (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size() + page - 1) / page * page;
  return {reinterpret_cast<std::byte*>(begin), end - begin};  // NOLINT(performance-no-int-to-ptr)
}

/// The last buffer is gone, and the registration with it: nothing of it needs to be given back.
void forget(void* /*memory*/, void* /*opaque*/) {}

}  // namespace

InPlace in_place_of(const rte_device& device, const std::string& driver, bool takes_segments) {
  if (!takes_segments) {
    return InPlace::kNever;
  }
  if (driver == "net_vhost" || driver == "net_af_packet") {
    return InPlace::kByCpu;
  }
  // Where a NIC is told physical addresses, neighbouring pages of an application are apart.
  const bool is_pci = std::string(::rte_bus_name(::rte_dev_bus(&device))) == "pci";
  return is_pci && ::rte_eal_iova_mode() == RTE_IOVA_VA ? InPlace::kByDma : InPlace::kNever;
}

bool DmaPages::add(std::span<const std::byte> memory) {
  if (how_ != InPlace::kByDma) {
    return how_ == InPlace::kByCpu;
  }
  const Range range = pages_of(memory);
  const MutexLock lock(mutex_);
  const auto found = added_.find(range);
  if (found != added_.end()) {
    ++found->second;
    return true;
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  // Refused where it overlaps other memory that DPDK knows.
  if (::rte_extmem_register(range.first, range.second, nullptr, 0, page) != 0) {
    return false;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(range.first);
  if (::rte_dev_dma_map(&device_, range.first, address, range.second) != 0) {
    (void)::rte_extmem_unregister(range.first, range.second);
    return false;
  }
  added_.emplace(range, 1);
  return true;
}

void DmaPages::remove(std::span<const std::byte> memory) {
  if (how_ != InPlace::kByDma) {
    return;
  }
  const Range range = pages_of(memory);
  const MutexLock lock(mutex_);
  const auto found = added_.find(range);
  if (found == added_.end() || --found->second > 0) {
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(range.first);
  (void)::rte_dev_dma_unmap(&device_, range.first, address, range.second);
  (void)::rte_extmem_unregister(range.first, range.second);
  added_.erase(found);
}

RegisteredMemory::~RegisteredMemory() {
  for (const auto& [key, region] : regions_) {
    pages_.remove({key.first, key.second});
  }
}

bool RegisteredMemory::add(std::span<const std::byte> memory) {
  const auto found = regions_.find({memory.data(), memory.size()});
  if (found != regions_.end()) {
    // The device knows a removed region's old pages, which an allocation may have replaced.
    const bool is_there = found->second.times > 0;
    found->second.times += is_there ? 1 : 0;
    return is_there;
  }
  if (memory.empty() || !pages_.add(memory)) {
    return false;
  }
  Region& region = regions_[{memory.data(), memory.size()}];
  region.times = 1;
  region.shared.free_cb = forget;
  rte_mbuf_ext_refcnt_set(&region.shared, 1);
  return true;
}

bool RegisteredMemory::remove(std::span<const std::byte> memory) {
  const auto found = regions_.find({memory.data(), memory.size()});
  if (found == regions_.end() || found->second.times == 0) {
    return true;
  }
  --found->second.times;
  if (found->second.times > 0) {
    return true;
  }
  has_removed_ = true;
  return release();
}

bool RegisteredMemory::release() {
  if (!has_removed_) {
    return true;
  }
  recent_ = nullptr;
  has_removed_ = false;
  for (auto next = regions_.begin(); next != regions_.end();) {
    const auto& [key, region] = *next;
    const bool is_pointed_to = rte_mbuf_ext_refcnt_read(&region.shared) > 1;
    if (region.times == 0 && !is_pointed_to) {
      pages_.remove({key.first, key.second});
      next = regions_.erase(next);
    } else {
      has_removed_ = has_removed_ || region.times == 0;
      ++next;
    }
  }
  return !has_removed_;
}

rte_mbuf_ext_shared_info* RegisteredMemory::find(std::span<const std::byte> payload) {  // hot
  if (recent_ == nullptr || !contains({recent_->first.first, recent_->first.second}, payload)) {
    auto next = regions_.upper_bound({payload.data(), std::numeric_limits<std::size_t>::max()});
    if (next == regions_.begin()) {
      return nullptr;
    }
    --next;  // It may miss the outer of nested regions; then the payload is copied.
    if (next->second.times == 0 || !contains({next->first.first, next->first.second}, payload)) {
      return nullptr;
    }
    recent_ = &*next;
  }
  return &recent_->second.shared;
}

void attach(rte_mbuf& buffer,
            std::span<const std::byte> payload,
            rte_mbuf_ext_shared_info& region) {             // hot
  auto* const at = const_cast<std::byte*>(payload.data());  // NOLINT(*-const-cast): only read
  const auto bytes = static_cast<std::uint16_t>(payload.size());
  rte_mbuf_ext_refcnt_update(&region, 1);
  rte_pktmbuf_attach_extbuf(&buffer, at, reinterpret_cast<rte_iova_t>(at), bytes, &region);
  buffer.data_len = bytes;
}

}  // namespace harp::dpdk
