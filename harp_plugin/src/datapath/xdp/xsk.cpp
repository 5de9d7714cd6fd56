#include "datapath/xdp/xsk.hpp"

#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>

#include "datapath/unique_fd.hpp"

namespace harp {
namespace {

// Linux 6.6; not in older headers.
constexpr std::uint16_t kUsePieces = 1U << 4U;  // XDP_USE_SG
constexpr std::uint32_t kGoesOn = 1U << 0U;     // XDP_PKT_CONTD
constexpr std::uint32_t kReceiveChunks = 4096;  ///< A power of two, as all rings.
constexpr std::uint32_t kTransmitFrames = 256;  ///< Under way at the same time.
constexpr std::size_t kHeadroom = 256;          ///< That the kernel keeps for XDP programs.
constexpr std::size_t kSmallChunk = 2048;
constexpr std::size_t kLargeChunk = 4096;
constexpr int kSendBufferBytes = 64 << 20;
constexpr int kMaxKicks = 64;
/// The kernel takes its time to let go of a queue whose socket was closed: on a busy machine more
/// than half a second.
constexpr auto kClosing = std::chrono::seconds(3);
constexpr auto kBetweenTries = std::chrono::milliseconds(1);

std::size_t chunk_for(std::size_t frame_bytes) {
  return frame_bytes + kHeadroom <= kSmallChunk ? kSmallChunk : kLargeChunk;
}

}  // namespace

Xsk::Xsk(const XskOptions& options)
    : chunk_bytes_(chunk_for(options.frame_bytes)),
      chunks_per_frame_((options.frame_bytes + chunk_bytes_ - 1) / chunk_bytes_),
      has_pieces_(options.frame_bytes > kMaxWithoutPieces) {
  under_way_.resize(kTransmitFrames);
  for (std::size_t frame = kTransmitFrames; frame > 0; --frame) {
    free_.push_back((kReceiveChunks + (frame - 1) * chunks_per_frame_) * chunk_bytes_);
  }
  memory_bytes_ = (kReceiveChunks + kTransmitFrames * chunks_per_frame_) * chunk_bytes_;
}

Xsk::~Xsk() {
  fd_ = UniqueFd();  // Before its memory goes.
  if (memory_ != nullptr) {
    ::munmap(memory_, memory_bytes_);
  }
}

std::unique_ptr<Xsk> Xsk::open(const XskOptions& options, std::string* error) {
  std::unique_ptr<Xsk> xsk(new Xsk(options));
  const std::string problem = xsk->set_up(options);
  if (!problem.empty()) {
    *error = "AF_XDP on queue " + std::to_string(options.queue) + " of " + options.interface +
             ": " + problem;
    return nullptr;
  }
  return xsk;
}

/// Says what went wrong, or nothing.
std::string Xsk::set_up(const XskOptions& options) {
  const auto problem = [](const char* what) {
    return std::string(what) + ": " + std::system_category().message(errno);
  };
  void* const memory =
      ::mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return problem("no memory for frames");
  }
  memory_ = static_cast<std::byte*>(memory);
  (void)::madvise(memory_, memory_bytes_, MADV_HUGEPAGE);
  fd_ = UniqueFd(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!fd_.is_open()) {
    return problem("no socket");
  }
  const auto set = [&](int option, const auto& value) {
    return ::setsockopt(fd_.get(), SOL_XDP, option, &value, sizeof(value)) == 0;
  };
  xdp_umem_reg area{};
  area.addr = reinterpret_cast<std::uintptr_t>(memory_);
  area.len = memory_bytes_;
  area.chunk_size = static_cast<std::uint32_t>(chunk_bytes_);
  const auto transmit_chunks =
      static_cast<std::uint32_t>(std::bit_ceil(kTransmitFrames * chunks_per_frame_));
  if (!set(XDP_UMEM_REG, area)) {
    return problem("frames cannot be registered");
  }
  if (!set(XDP_UMEM_FILL_RING, kReceiveChunks) || !set(XDP_RX_RING, kReceiveChunks) ||
      !set(XDP_UMEM_COMPLETION_RING, transmit_chunks) || !set(XDP_TX_RING, transmit_chunks)) {
    return problem("no rings");
  }
  xdp_mmap_offsets offsets{};
  socklen_t bytes = sizeof(offsets);
  if (::getsockopt(fd_.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &bytes) != 0 ||
      !fill_.map(fd_.get(), XDP_UMEM_PGOFF_FILL_RING, offsets.fr, kReceiveChunks) ||
      !completion_.map(fd_.get(), XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, transmit_chunks) ||
      !receive_.map(fd_.get(), XDP_PGOFF_RX_RING, offsets.rx, kReceiveChunks) ||
      !transmit_.map(fd_.get(), XDP_PGOFF_TX_RING, offsets.tx, transmit_chunks)) {
    return problem("rings cannot be mapped");
  }
  // In copy mode packets that are sent count against it until the receiver has them.
  if (::setsockopt(
          fd_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBufferBytes, sizeof(kSendBufferBytes)) !=
      0) {
    return problem("the send buffer cannot be enlarged");
  }
  for (std::uint64_t chunk = 0; chunk < kReceiveChunks; ++chunk) {
    received_.push_back(chunk * chunk_bytes_);
  }
  fill();
  return bind(options);
}

std::string Xsk::bind(const XskOptions& options) {
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = static_cast<std::uint32_t>(options.interface_index);
  address.sxdp_queue_id = options.queue;
  const auto try_mode = [&](unsigned mode) {
    address.sxdp_flags =
        static_cast<std::uint16_t>(mode | XDP_USE_NEED_WAKEUP | (has_pieces_ ? kUsePieces : 0U));
    is_zero_copy_ = mode == XDP_ZEROCOPY;
    return ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  };
  const auto give_up_at = std::chrono::steady_clock::now() + kClosing;
  int error = EBUSY;
  while (error == EBUSY && std::chrono::steady_clock::now() < give_up_at) {
    if (try_mode(XDP_ZEROCOPY) || (errno != EBUSY && try_mode(XDP_COPY))) {
      return {};
    }
    error = errno;
    if (error == EBUSY) {
      std::this_thread::sleep_for(kBetweenTries);
    }
  }
  std::string problem = "cannot bind: " + std::system_category().message(error);
  if (error == EBUSY) {
    problem += " (another socket has this queue)";
  } else if (error == EINVAL && has_pieces_) {
    problem += " (frames above " + std::to_string(kMaxWithoutPieces) + " bytes need Linux 6.6)";
  }
  return problem;
}

// --- Receive ------------------------------------------------------------------------------------

/// Gives the chunks of the last receive() back.
void Xsk::fill() {
  for (const std::uint64_t address : received_) {
    fill_.put(address & ~static_cast<std::uint64_t>(chunk_bytes_ - 1));
  }
  if (!received_.empty()) {
    fill_.publish();
    received_.clear();
  }
}

std::span<const std::span<const std::byte>> Xsk::receive(std::size_t maximum) {  // hot
  fill();
  frames_.clear();
  joined_.clear();
  const std::uint32_t count = receive_.count();
  if (count == 0) {
    if (fill_.needs_wakeup()) {
      (void)::recvfrom(fd_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
    }
    return {};
  }
  joined_.reserve(has_pieces_ ? maximum * chunks_per_frame_ * chunk_bytes_ : 0);
  std::size_t begin = 0;  // In joined_: where the frame that is being joined begins.
  for (std::uint32_t i = 0; i < count && frames_.size() < maximum; ++i) {
    const xdp_desc piece = receive_.take();
    received_.push_back(piece.addr);
    const std::span<const std::byte> bytes(memory_ + piece.addr, piece.len);
    const bool goes_on = (piece.options & kGoesOn) != 0;
    if (!goes_on && joined_.size() == begin) {
      frames_.push_back(bytes);
      continue;
    }
    if (joined_.size() + bytes.size() <= joined_.capacity()) {
      joined_.insert(joined_.end(), bytes.begin(), bytes.end());
    }  // Else it is no frame of ours, and its parser finds that the end is missing.
    if (!goes_on) {
      frames_.emplace_back(std::span(joined_).subspan(begin));
      begin = joined_.size();
    }
  }
  receive_.release();
  return frames_;
}

// --- Transmit -----------------------------------------------------------------------------------

/// Takes back what the kernel has sent.
void Xsk::reap() {
  const std::uint32_t count = completion_.count();
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t chunk = completion_.take() / chunk_bytes_ - kReceiveChunks;
    const std::size_t frame = chunk / chunks_per_frame_;
    if (--under_way_[frame] == 0) {
      free_.push_back((kReceiveChunks + frame * chunks_per_frame_) * chunk_bytes_);
    }
  }
  if (count > 0) {
    completion_.release();
  }
}

std::size_t Xsk::room() {
  if (free_.size() < kTransmitFrames / 2) {
    reap();
  }
  return free_.size();
}

std::span<std::byte> Xsk::allocate() {
  return {memory_ + free_.back(), chunks_per_frame_ * chunk_bytes_};
}

void Xsk::send(std::size_t bytes) {  // hot
  const std::uint64_t address = free_.back();
  free_.pop_back();
  const std::size_t pieces = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
  under_way_[(address / chunk_bytes_ - kReceiveChunks) / chunks_per_frame_] = pieces;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t at = i * chunk_bytes_;
    transmit_.put({.addr = address + at,
                   .len = static_cast<std::uint32_t>(std::min(chunk_bytes_, bytes - at)),
                   .options = i + 1 < pieces ? kGoesOn : 0});
  }
}

bool Xsk::flush() {  // hot
  transmit_.publish();
  // One call sends a part of the ring in copy mode, and says so.
  for (int kicks = 0; kicks < kMaxKicks && !transmit_.is_drained(); ++kicks) {
    if (is_zero_copy_ && !transmit_.needs_wakeup()) {
      return true;
    }
    const std::uint32_t before = transmit_.room();
    const ssize_t sent = ::sendto(fd_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, 0);
    if (sent < 0 && transmit_.room() == before) {
      return false;
    }
  }
  reap();
  return true;
}

}  // namespace harp
