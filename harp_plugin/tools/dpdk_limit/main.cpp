// dpdk-limit: what a DPDK driver moves when nothing else is to be done: the limit that stands
// beside HARP's own figures over DPDK.
//
// One process sends frames as fast as the driver takes them, the other receives them. Each end
// copies every payload, between the frame and a buffer of its own, as an application's data must
// be: no protocol, no acknowledgement, no order. Frames are numbered; the receiver counts those
// that are missing or not what was sent.
//
//   $ dpdk-limit receive net_vhost0,iface=/tmp/nic,client=1 &
//   $ dpdk-limit send virtio_user0,path=/tmp/nic,server=1
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "datapath/frame.hpp"
#include "dpdk/eal.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: dpdk-limit send|receive DEVICE [MTU]\n"
    "\n"
    "DEVICE: as in HARP_DPDK, without address. MTU: of IP packets, 1500.\n";
constexpr std::uint16_t kBurst = 32;
constexpr std::uint16_t kDescriptors = 512;
constexpr unsigned kFrames = 4095;
constexpr unsigned kCache = 256;
constexpr std::size_t kHeaderBytes = harp::frame_header_bytes(4) + harp::kHeaderBytes;
constexpr std::size_t kBufferBytes = std::size_t{512} << 10U;  ///< As eight messages of 64 KiB.
constexpr auto kWarmUp = std::chrono::milliseconds(500);
constexpr auto kMeasured = std::chrono::seconds(2);
constexpr auto kMaxWait = std::chrono::seconds(10);

class Port {
 public:
  Port(const std::string& device, std::size_t frame_bytes) : frame_bytes_(frame_bytes) {
    std::string error = harp::dpdk::start_eal();
    const int port = error.empty() ? harp::dpdk::attach(device, &error) : -1;
    if (port < 0) {
      throw std::runtime_error(error);
    }
    harp::dpdk::register_thread();
    id_ = static_cast<std::uint16_t>(port);
    const auto room = static_cast<std::uint16_t>(frame_bytes + RTE_PKTMBUF_HEADROOM + 64);
    pool_ = ::rte_pktmbuf_pool_create("frames", kFrames, kCache, 0, room, SOCKET_ID_ANY);
    require(pool_ != nullptr, "no memory for frames");
    rte_eth_conf configuration{};  // NOLINT(bugprone-invalid-enum-default-initialization)
    configuration.rxmode.mtu = static_cast<std::uint32_t>(frame_bytes - harp::kEthernetBytes);
    std::uint16_t receives = kDescriptors;
    std::uint16_t sends = kDescriptors;
    require(::rte_eth_dev_configure(id_, 1, 1, &configuration) == 0, "cannot be configured");
    (void)::rte_eth_dev_adjust_nb_rx_tx_desc(id_, &receives, &sends);
    require(::rte_eth_rx_queue_setup(id_, 0, receives, 0, nullptr, pool_) == 0 &&
                ::rte_eth_tx_queue_setup(id_, 0, sends, 0, nullptr) == 0 &&
                ::rte_eth_dev_start(id_) == 0,
            "cannot be started");
  }

  std::size_t payload_bytes() const { return frame_bytes_ - kHeaderBytes; }

  /// A burst, where there is memory for it.
  void send(std::span<const std::byte> buffer, std::uint64_t& number, std::size_t& at) const {
    std::array<rte_mbuf*, kBurst> frames{};
    if (::rte_pktmbuf_alloc_bulk(pool_, frames.data(), kBurst) != 0) {
      (void)::rte_eth_tx_burst(id_, 0, frames.data(), 0);  // Gives back what was sent.
      return;
    }
    for (rte_mbuf* const frame : frames) {
      frame->data_len = static_cast<std::uint16_t>(frame_bytes_);
      frame->pkt_len = static_cast<std::uint32_t>(frame_bytes_);
      auto* const bytes = rte_pktmbuf_mtod(frame, std::byte*);
      std::memset(bytes, 0, kHeaderBytes);
      std::memcpy(bytes, &number, sizeof(number));
      std::memcpy(bytes + kHeaderBytes, &buffer[at], payload_bytes());
      at = next(at);
      ++number;
    }
    const auto until = Clock::now() + kMaxWait;
    for (std::uint16_t sent = 0; sent < kBurst;) {
      sent = static_cast<std::uint16_t>(
          sent +
          ::rte_eth_tx_burst(id_, 0, &frames[sent], static_cast<std::uint16_t>(kBurst - sent)));
      require(Clock::now() < until, "takes no more frames: the other end has gone");
    }
  }

  struct Received {
    std::uint64_t frames = 0;
    std::uint64_t lost = 0;
  };
  void receive(std::span<std::byte> buffer,
               Received& sum,
               std::uint64_t& expected,
               std::size_t& at) const {
    std::array<rte_mbuf*, kBurst> frames{};
    const std::uint16_t count = ::rte_eth_rx_burst(id_, 0, frames.data(), kBurst);
    for (const rte_mbuf* const frame : std::span(frames).first(count)) {
      std::uint64_t number = 0;
      const auto* const bytes = rte_pktmbuf_mtod(frame, const std::byte*);
      std::memcpy(&number, bytes, sizeof(number));
      require(frame->data_len == frame_bytes_ && number >= expected, "brings what was not sent");
      sum.lost += number - expected;
      expected = number + 1;
      std::memcpy(&buffer[at], bytes + kHeaderBytes, payload_bytes());
      at = next(at);
    }
    sum.frames += count;
    ::rte_pktmbuf_free_bulk(frames.data(), count);
  }

  /// Where the next payload is in the buffer.
  std::size_t next(std::size_t at) const {
    return at + 2 * payload_bytes() > kBufferBytes ? 0 : at + payload_bytes();
  }

 private:
  static void require(bool is_right, const char* what) {
    if (!is_right) {
      throw std::runtime_error(std::string("the device ") + what);
    }
  }

  std::size_t frame_bytes_;
  std::uint16_t id_ = 0;
  rte_mempool* pool_ = nullptr;
};

void run_sender(const Port& port) {
  const std::vector<std::byte> buffer(kBufferBytes, std::byte{1});
  std::uint64_t number = 0;
  std::size_t at = 0;
  const auto until = Clock::now() + kMaxWait;
  while (Clock::now() < until) {
    port.send(buffer, number, at);
  }
}

void run_receiver(const Port& port) {
  std::vector<std::byte> buffer(kBufferBytes);
  Port::Received sum;
  std::uint64_t expected = 0;
  std::size_t at = 0;
  const auto run = [&](Clock::duration time) {
    const auto begin = Clock::now();
    while (Clock::now() - begin < time) {
      port.receive(buffer, sum, expected, at);
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto until = Clock::now() + kMaxWait;
  while (sum.frames == 0) {
    port.receive(buffer, sum, expected, at);
    if (Clock::now() > until) {
      throw std::runtime_error("nothing arrives");
    }
  }
  (void)run(kWarmUp);
  sum = {};
  const double seconds = run(kMeasured);
  for (std::size_t i = 0; i < port.payload_bytes(); ++i) {
    if (buffer[i] != std::byte{1}) {
      throw std::runtime_error("a payload is not what was sent");
    }
  }
  const double rate = static_cast<double>(sum.frames) / seconds;
  std::printf(
      "| the driver alone, a copy at either end | %.2f Mpps | %.1f Gb/s of payload | %llu lost |\n",
      rate / 1e6,
      rate * static_cast<double>(port.payload_bytes()) * 8 / 1e9,
      static_cast<unsigned long long>(sum.lost));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string role = words.empty() ? "" : words[0];
  std::size_t mtu = 1500;
  const bool has_mtu = words.size() == 3;
  if (has_mtu) {
    const std::string& text = words[2];
    const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), mtu);
    mtu = problem == std::errc() && rest == text.data() + text.size() ? mtu : 0;
  }
  if (words.size() < 2 || words.size() > 3 || (role != "send" && role != "receive") || mtu < 576 ||
      mtu > 9000) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    const Port port(words[1], kHeaderBytes + harp::pss_for_mtu(mtu));
    (role == "send" ? run_sender : run_receiver)(port);
    std::fflush(stdout);
    std::_Exit(0);  // DPDK's environment is never cleaned up.
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "dpdk-limit: %s: %s\n", words[1].c_str(), problem.what());
    std::_Exit(1);
  }
}
