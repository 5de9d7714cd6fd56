// An AF_XDP socket on one queue of an interface: frames in memory that the kernel, or the NIC
// itself, reads and writes.
#pragma once

#include <linux/if_xdp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "datapath/unique_fd.hpp"
#include "datapath/xdp/xsk_ring.hpp"

namespace harp {

struct XskOptions {
  std::string interface;
  int interface_index = 0;
  std::uint32_t queue = 0;
  std::size_t frame_bytes = 1514;  ///< Largest, Ethernet header included.
};

/// Thread: one at a time.
class Xsk {
 public:
  /// Null, and `error` says why, where the kernel refuses.
  static std::unique_ptr<Xsk> open(const XskOptions& options, std::string* error);
  Xsk(const Xsk&) = delete;
  Xsk& operator=(const Xsk&) = delete;
  ~Xsk();

  int descriptor() const { return fd_.get(); }
  /// Frames larger than this need several buffers (Linux 6.6).
  static constexpr std::size_t kMaxWithoutPieces = 3498 + 14;

  /// Frames that arrived, `most` at most. They stay until the next call.
  std::span<const std::span<const std::byte>> receive(std::size_t maximum);
  /// Bytes of these that were copied, since they came in pieces.
  std::size_t bytes_joined() const { return joined_.size(); }
  bool anything_there() const { return receive_.count() > 0; }

  /// Frames that can be allocated now.
  std::size_t room();
  /// Memory for one frame; there is room.
  std::span<std::byte> allocate();
  /// Sends the frame that was allocated last, with these first `bytes` of it.
  void send(std::size_t bytes);
  /// Gets the kernel to take what was sent. False: not all of it, for now.
  bool flush();

 private:
  explicit Xsk(const XskOptions& options);
  std::string set_up(const XskOptions& options);
  std::string bind(const XskOptions& options);
  void fill();
  void reap();

  std::size_t chunk_bytes_;
  std::size_t chunks_per_frame_;  ///< A frame that is sent has them in a row.
  bool has_pieces_;
  bool is_zero_copy_ = false;
  std::byte* memory_ = nullptr;
  std::size_t memory_bytes_ = 0;
  UniqueFd fd_;
  XskRing<std::uint64_t> fill_;
  XskRing<std::uint64_t> completion_;
  XskRing<xdp_desc> receive_;
  XskRing<xdp_desc> transmit_;
  std::vector<std::uint64_t> received_;  ///< Chunks that the caller reads, to be given back.
  std::vector<std::uint64_t> free_;      ///< First chunks of frames that can be sent.
  std::vector<std::size_t> under_way_;   ///< Chunks of each such frame that the kernel still has.
  std::vector<std::span<const std::byte>> frames_;
  std::vector<std::byte> joined_;  ///< Frames that came in pieces.
};

}  // namespace harp
