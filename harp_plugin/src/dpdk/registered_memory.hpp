// Memory of applications that a NIC reads in place, so that payloads need not be copied.
//
// What NCCL registers (regMr) before it sends from it. A packet is then two buffers: one of ours
// with the headers, and one that points to the payload. Until the registration is taken back, the
// NIC may read the memory; what it still reads after the send was acknowledged can only be a copy
// of a packet that the peer has and ignores.
#pragma once

#include <rte_dev.h>
#include <rte_mbuf.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "sync/mutex.hpp"

namespace harp::dpdk {

/// How a device reads memory that is not DPDK's.
enum class InPlace {
  kNever,  ///< It does not: one buffer per packet, or another process that has DPDK's memory only.
  kByCpu,  ///< Its driver copies, in this process: any memory will do.
  kByDma,  ///< It must be told of each page (an IOMMU, or the NIC's own tables).
};

/// What `device` can do, whose driver is `driver`.
InPlace in_place_of(const rte_device& device, const std::string& driver, bool takes_segments);

/// The pages that a device may read, shared by its engines. Thread: any.
class DmaPages {
 public:
  DmaPages(rte_device& device, InPlace how) : device_(device), how_(how) {}
  DmaPages(const DmaPages&) = delete;
  DmaPages& operator=(const DmaPages&) = delete;
  ~DmaPages() = default;  // The device is closed then.

  /// False: the device cannot read them in place. Pages may be added more than once.
  bool add(std::span<const std::byte> memory);
  void remove(std::span<const std::byte> memory);

 private:
  using Range = std::pair<std::byte*, std::size_t>;

  rte_device& device_;
  InPlace how_;
  Mutex mutex_;
  std::map<Range, std::size_t> added_ HARP_GUARDED_BY(mutex_);  ///< How many times.
};

/// Makes `buffer` point to `payload`, and `region` count it until the buffer is freed.
void attach(rte_mbuf& buffer, std::span<const std::byte> payload, rte_mbuf_ext_shared_info& region);

/// What one engine sends in place. Thread: the engine's.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(DmaPages& pages) : pages_(pages) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory();

  /// False: payloads there are copied. What was added may be added again.
  bool add(std::span<const std::byte> memory);
  /// Takes one add() back. False: that was the last one, and buffers still point there: the region
  /// stays the device's, and nothing more is sent from it, until release() finds them gone.
  bool remove(std::span<const std::byte> memory);
  /// Gives up what was removed and is not pointed to any more. False: something still is.
  bool release();
  /// What counts the buffers that point to the region of `payload`; null: it is in none.
  rte_mbuf_ext_shared_info* find(std::span<const std::byte> payload);

 private:
  struct Region {
    std::size_t times = 0;  ///< Added, and not removed.
    /// Counts one for the registration and one for each buffer that points there.
    rte_mbuf_ext_shared_info shared{};
  };
  using Key = std::pair<const std::byte*, std::size_t>;

  DmaPages& pages_;
  std::map<Key, Region> regions_;
  bool has_removed_ = false;                        ///< Regions that wait for release().
  std::pair<const Key, Region>* recent_ = nullptr;  ///< Where the last payload was.
};

}  // namespace harp::dpdk
