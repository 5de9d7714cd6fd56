#include "port.hpp"

#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_mbuf.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <string>

#include "base/bytes.hpp"
#include "base/prefetch.hpp"
#include "base/time.hpp"
#include "datapath/arp.hpp"
#include "datapath/datapath.hpp"
#include "datapath/dpdk_api.hpp"
#include "datapath/frame.hpp"
#include "eal.hpp"

namespace harp::dpdk {
namespace {

constexpr std::uint16_t kDescriptors = 512;
/// Packets that leave without waiting for the others of a turn: the peer works on them meanwhile.
constexpr std::uint16_t kAtOnce = 16;
constexpr unsigned kCache = 256;
constexpr unsigned kThreads = 16;  ///< That move packets, each with a cache.
constexpr std::size_t kHandOverPackets = 1024;
constexpr Duration kSilence = std::chrono::milliseconds(100);
/// Shorter payloads are copied for less than it costs to point to them.
constexpr std::size_t kMinInPlace = 256;
constexpr Duration kMaxWait = std::chrono::milliseconds(100);
/// Ports of frames that every engine looks at.
constexpr std::uint16_t kForAll = 0xffff;

std::string problem(const DpdkPortOptions& options, const char* what, int error) {
  return "DPDK device " + options.device + ": " + what + ": " + ::rte_strerror(error);
}

/// Below the ports that kernels hand out, with room for all engines behind it.
std::uint16_t random_udp_port() {
  std::random_device random;
  return static_cast<std::uint16_t>(std::uniform_int_distribution<int>(16384, 28671)(random));
}

}  // namespace

// --- The NIC ------------------------------------------------------------------------------------

Port::Port(const DpdkPortOptions& options)
    : options_(options),
      first_udp_port_(random_udp_port()),
      exchange_(options.engines, options.mtu_bytes + kEthernetBytes, kHandOverPackets) {}

Port::~Port() {
  if (device_ != nullptr) {
    (void)::rte_eth_dev_stop(id_);
    (void)::rte_eth_dev_close(id_);
    (void)::rte_dev_remove(device_);
  }
}

std::unique_ptr<Port> Port::open(const DpdkPortOptions& options, std::string* error) {
  std::unique_ptr<Port> port(new Port(options));
  *error = port->set_up();
  return error->empty() ? std::move(port) : nullptr;
}

std::string Port::set_up() {
  std::string error = start_eal();
  const int id = error.empty() ? attach(options_.device, &error) : -1;
  if (id < 0) {
    return error;
  }
  id_ = static_cast<std::uint16_t>(id);
  return start();
}

std::string Port::start() {
  const auto queues = static_cast<std::uint16_t>(options_.engines);
  rte_eth_dev_info info{};
  if (const int result = ::rte_eth_dev_info_get(id_, &info); result != 0) {
    return problem(options_, "no information", -result);
  }
  device_ = info.device;
  if (queues > std::min(info.max_rx_queues, info.max_tx_queues)) {
    return "DPDK device " + options_.device + " has " +
           std::to_string(std::min(info.max_rx_queues, info.max_tx_queues)) +
           " queue(s), and so at most as many engines, not " + std::to_string(queues);
  }
  rte_eth_conf
      configuration{};  // NOLINT(bugprone-invalid-enum-default-initialization): as DPDK asks
  configuration.rxmode.mtu = static_cast<std::uint32_t>(options_.mtu_bytes);
  if (queues > 1 && info.flow_type_rss_offloads != 0) {
    configuration.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    configuration.rx_adv_conf.rss_conf.rss_hf =
        info.flow_type_rss_offloads & (RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_IPV4);
  }
  configuration.rxmode.offloads = info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
  configuration.txmode.offloads =
      info.tx_offload_capa & (RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
  const auto offers = [&](std::uint64_t what) {
    return (configuration.txmode.offloads & what) != 0;
  };
  nic_makes_sums_ = offers(RTE_ETH_TX_OFFLOAD_UDP_CKSUM);
  pages_.emplace(*device_,
                 in_place_of(*device_, info.driver_name, offers(RTE_ETH_TX_OFFLOAD_MULTI_SEGS)));
  if (const int result = ::rte_eth_dev_configure(id_, queues, queues, &configuration);
      result != 0) {
    return problem(options_, "cannot be configured", -result);
  }
  std::uint16_t receives = kDescriptors;
  std::uint16_t sends = kDescriptors;
  (void)::rte_eth_dev_adjust_nb_rx_tx_desc(id_, &receives, &sends);
  const unsigned buffers =
      queues * (unsigned{receives} + sends + 3U * kBurst) + 2 * kCache * kThreads;
  if (std::string error = make_pools(buffers); !error.empty()) {
    return error;
  }
  const auto socket = static_cast<unsigned>(std::max(::rte_eth_dev_socket_id(id_), 0));
  for (std::uint16_t queue = 0; queue < queues; ++queue) {
    int result = ::rte_eth_rx_queue_setup(id_, queue, receives, socket, nullptr, pool_);
    if (result == 0) {
      result = ::rte_eth_tx_queue_setup(id_, queue, sends, socket, nullptr);
    }
    if (result != 0) {
      return problem(options_, "no queue", -result);
    }
  }
  rte_ether_addr mac{};
  if (const int result = ::rte_eth_dev_start(id_); result != 0) {
    return problem(options_, "cannot be started", -result);
  }
  (void)::rte_eth_macaddr_get(id_, &mac);
  std::memcpy(self_.mac.data(), mac.addr_bytes, self_.mac.size());
  self_.ip = ipv4_number(options_.address);
  self_.prefix = options_.prefix;
  self_.gateway = options_.gateway ? ipv4_number(*options_.gateway) : 0;
  return {};
}

std::string Port::make_pools(unsigned buffers) {
  const auto frame =
      static_cast<std::uint16_t>(options_.mtu_bytes + kEthernetBytes + 64 + RTE_PKTMBUF_HEADROOM);
  const auto make = [&](const char* what, std::uint16_t room) {
    const std::string name = "harp-" + std::to_string(id_) + what;
    return ::rte_pktmbuf_pool_create(name.c_str(), buffers, kCache, 0, room, SOCKET_ID_ANY);
  };
  pool_ = make("", std::max<std::uint16_t>(frame, RTE_MBUF_DEFAULT_BUF_SIZE));
  pointers_ = make("-pointers", 0);
  return pool_ != nullptr && pointers_ != nullptr
             ? ""
             : problem(options_, "no memory for packets", rte_errno);
}

std::unique_ptr<Datapath> Port::open_engine(std::size_t engine) {
  return std::make_unique<PortDatapath>(*this, engine);
}

// --- One engine's datapath ----------------------------------------------------------------------

PortDatapath::PortDatapath(Port& port, std::size_t engine)
    : port_(port),
      engine_(engine),
      address_(port.options_.address),
      neighbours_(port.self_),
      hand_over_(port.exchange_, engine),
      registered_(*port.pages_) {
  const std::uint16_t ports = port.options_.local_ports;
  address_.port = static_cast<std::uint16_t>(port.first_udp_port_ + engine * ports);
  for (std::uint16_t i = 0; i < ports; ++i) {
    sources_.push_back(address_);
    sources_.back().port = static_cast<std::uint16_t>(address_.port + i);
    port_.owners_.set(
        static_cast<std::uint16_t>(address_.port + i),
        {.engine = static_cast<std::uint8_t>(engine), .local_port = static_cast<std::uint8_t>(i)});
  }
  arrivals_.reserve(2UL * kBurst);
}

PortDatapath::~PortDatapath() {
  register_thread();
  for (std::uint16_t i = 0; i < port_.options_.local_ports; ++i) {
    port_.owners_.clear(static_cast<std::uint16_t>(address_.port + i));
  }
  give_back();
  ::rte_pktmbuf_free_bulk(queue_.data(), queued_);
  ::rte_pktmbuf_free_bulk(fresh_.data(), fresh_count_);
}

void PortDatapath::give_back() {
  ::rte_pktmbuf_free_bulk(received_.data(), received_count_);
  received_count_ = 0;
}

std::span<const Arrival> PortDatapath::receive() {  // hot
  register_thread();
  give_back();
  arrivals_.clear();
  received_count_ =
      ::rte_eth_rx_burst(port_.id_, static_cast<std::uint16_t>(engine_), received_.data(), kBurst);
  for (std::uint16_t i = 0; i < received_count_; ++i) {
    const rte_mbuf* const packet = received_[i];
    const std::uint64_t sum = packet->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
    // Buffers hold the largest frame, so none has segments.
    if (packet->nb_segs == 1 && sum != RTE_MBUF_F_RX_L4_CKSUM_BAD) {
      // "None" says that the sender's NIC, a virtual one, has left the sum out between memories.
      const bool is_verified =
          sum == RTE_MBUF_F_RX_L4_CKSUM_GOOD || sum == RTE_MBUF_F_RX_L4_CKSUM_NONE;
      take_frame({rte_pktmbuf_mtod(packet, const std::byte*), packet->data_len}, is_verified);
    }
  }
  hand_over_.wake_takers();
  stats_.batches_received += received_count_ > 0 ? 1 : 0;
  if (port_.options_.engines > 1) {
    hand_over_.take_astray(kBurst, arrivals_);
    std::erase_if(arrivals_, [&](const Arrival& arrival) {
      if (arrival.route.local_port != kForAll) {
        return false;
      }
      (void)neighbours_.on_frame(arrival.packet, now_);  // Whom it came to has answered.
      return true;
    });
  }
  if (received_count_ > 0) {
    heard_at_ = now_;
  }
  return arrivals_;
}

void PortDatapath::take_frame(std::span<const std::byte> frame, bool is_verified) {  // hot
  const auto view = parse_frame(frame, is_verified);
  const auto owner = view && std::ranges::equal(view->destination_ip, ip_of(address_))
                         ? port_.owners_.find(view->destination_port)
                         : std::nullopt;
  if (owner) {
    hand_over_.deliver(*view, *owner, arrivals_, stats_);
  } else {
    take_other(frame);
  }
}

void PortDatapath::take_other(std::span<const std::byte> frame) {
  if (!parse_arp(frame)) {
    return;
  }
  if (const auto answer = neighbours_.on_frame(frame, now_)) {
    send_arp(*answer);
  }
  for (std::size_t engine = 0; engine < port_.options_.engines; ++engine) {
    if (engine != engine_) {
      (void)hand_over_.give(
          engine, {.peer = {}, .local_port = kForAll}, frame.first(kArpFrameBytes));
    }
  }
}

void PortDatapath::send_arp(const ArpFrame& frame) {
  rte_mbuf* const packet = queued_ < kBurst ? ::rte_pktmbuf_alloc(port_.pool_) : nullptr;
  if (packet == nullptr) {
    return;  // Who asked asks again.
  }
  std::memcpy(::rte_pktmbuf_append(packet, kArpFrameBytes), frame.data(), frame.size());
  queue_[queued_++] = packet;
}

/// With room for a frame of `bytes`; null: there is none.
rte_mbuf* PortDatapath::allocate(std::size_t bytes) {  // hot
  if (bytes > port_.options_.mtu_bytes + kEthernetBytes) {
    return nullptr;
  }
  if (fresh_count_ == 0) {
    if (::rte_pktmbuf_alloc_bulk(port_.pool_, fresh_.data(), kBurst) != 0) {
      return nullptr;
    }
    fresh_count_ = kBurst;
  }
  rte_mbuf* const packet = fresh_[--fresh_count_];
  packet->data_len = static_cast<std::uint16_t>(bytes);
  packet->pkt_len = static_cast<std::uint32_t>(bytes);
  return packet;
}

/// Leaves `payload`, with which `packet` ends, where it is. False: it has to be copied.
bool PortDatapath::point_to(std::span<const std::byte> payload, rte_mbuf& packet) {  // hot
  auto* const region = payload.size() < kMinInPlace ? nullptr : registered_.find(payload);
  rte_mbuf* const pointer = region == nullptr ? nullptr : ::rte_pktmbuf_alloc(port_.pointers_);
  if (pointer == nullptr) {
    return false;
  }
  attach(*pointer, payload, *region);
  packet.data_len = static_cast<std::uint16_t>(packet.data_len - payload.size());
  packet.next = pointer;
  packet.nb_segs = 2;
  return true;
}

void PortDatapath::send(const Route& route,
                        std::span<const std::byte> head,
                        std::span<const std::byte> payload) {  // hot
  const auto hop = neighbours_.find(route.peer, now_);
  const std::size_t header = frame_header_bytes(address_.family);
  const std::size_t bytes = header + head.size() + payload.size();
  rte_mbuf* const packet = hop.mac != nullptr ? allocate(bytes) : nullptr;
  if (packet == nullptr) {
    ++stats_.send_errors;
  } else {
    const std::span<std::byte> frame(rte_pktmbuf_mtod(packet, std::byte*), bytes);
    write_frame_headers({.source_mac = port_.self_.mac,
                         .destination_mac = *hop.mac,
                         .source = sources_[route.local_port],
                         .destination = route.peer,
                         .sum_by_nic = port_.nic_makes_sums_},
                        frame);
    const auto rest = copy_bytes(head, frame.subspan(header));
    if (!point_to(payload, *packet)) {
      copy_bytes(payload, rest);
      prefetch_next<PrefetchTo::kRead>(payload);
      stats_.bytes_copied_out += payload.size();
    }
    if (port_.nic_makes_sums_) {
      packet->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_UDP_CKSUM;
      packet->l2_len = kEthernetBytes;
      packet->l3_len = static_cast<std::uint16_t>(kIpv4Bytes);
    }
    queue_[queued_++] = packet;
    ++stats_.packets_sent;
    stats_.bytes_sent += bytes - header;
  }
  if (hop.request) {
    send_arp(*hop.request);
  }
  if (queued_ % kAtOnce == 0) {
    transmit();
  }
}

bool PortDatapath::flush(Time now) {  // hot
  now_ = now;
  is_busy_ = now - heard_at_ < kSilence;
  transmit();
  stats_.blocked += queued_ > 0 ? 1 : 0;
  return queued_ == 0;
}

/// What finds no room stays in the queue.
void PortDatapath::transmit() {  // hot
  if (queued_ == 0) {
    return;
  }
  if (port_.nic_makes_sums_) {
    (void)::rte_eth_tx_prepare(
        port_.id_, static_cast<std::uint16_t>(engine_), queue_.data(), queued_);
  }
  const std::uint16_t sent =
      ::rte_eth_tx_burst(port_.id_, static_cast<std::uint16_t>(engine_), queue_.data(), queued_);
  stats_.batches_sent += sent > 0 ? 1 : 0;
  std::copy(queue_.begin() + sent, queue_.begin() + queued_, queue_.begin());
  queued_ = static_cast<std::uint16_t>(queued_ - sent);
}

/// Copies could stay; what points to an application's memory must go.
void PortDatapath::discard() {
  ::rte_pktmbuf_free_bulk(queue_.data(), queued_);
  queued_ = 0;
}

bool PortDatapath::register_memory(std::span<const std::byte> memory) {
  register_thread();
  (void)registered_.release();
  return registered_.add(memory);
}

/// NICs free what they have sent when they send more, or are asked to. What one does not free stays
/// its own: nothing else is ever mapped there for it.
void PortDatapath::deregister_memory(std::span<const std::byte> memory) {
  register_thread();
  if (registered_.remove(memory) || queued_ > 0) {
    return;
  }
  const auto queue = static_cast<std::uint16_t>(engine_);
  const auto until = std::chrono::steady_clock::now() + kMaxWait;
  while (::rte_eth_tx_done_cleanup(port_.id_, queue, 0) >= 0 && !registered_.release() &&
         std::chrono::steady_clock::now() < until) {
  }
}

}  // namespace harp::dpdk

/// See dpdk_api.hpp.
extern "C" __attribute__((visibility("default"))) harp::DpdkPort* harp_dpdk_open_port(
    const harp::DpdkPortOptions& options, std::string* error) {
  try {
    return harp::dpdk::Port::open(options, error).release();
  } catch (const std::exception& problem) {  // It may not leave this library.
    *error = problem.what();
    return nullptr;
  }
}
