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
#include "base/time.hpp"
#include "datapath/arp.hpp"
#include "datapath/datapath.hpp"
#include "datapath/dpdk_api.hpp"
#include "datapath/frame.hpp"
#include "eal.hpp"

namespace harp::dpdk {
namespace {

constexpr std::uint16_t kDescriptors = 512;
constexpr unsigned kCache = 256;
constexpr unsigned kThreads = 16;  ///< That move packets, each with a cache.
constexpr std::size_t kHandOverPackets = 1024;
constexpr Duration kSilence = std::chrono::milliseconds(100);
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
  if (const int result = ::rte_eth_dev_configure(id_, queues, queues, &configuration);
      result != 0) {
    return problem(options_, "cannot be configured", -result);
  }
  std::uint16_t receives = kDescriptors;
  std::uint16_t sends = kDescriptors;
  (void)::rte_eth_dev_adjust_nb_rx_tx_desc(id_, &receives, &sends);
  const unsigned buffers = queues * (unsigned{receives} + sends + 256) + 2 * kCache * kThreads;
  const auto frame =
      static_cast<std::uint16_t>(options_.mtu_bytes + kEthernetBytes + 64 + RTE_PKTMBUF_HEADROOM);
  pool_ = ::rte_pktmbuf_pool_create(("harp-" + std::to_string(id_)).c_str(),
                                    buffers,
                                    kCache,
                                    0,
                                    std::max<std::uint16_t>(frame, RTE_MBUF_DEFAULT_BUF_SIZE),
                                    SOCKET_ID_ANY);
  if (pool_ == nullptr) {
    return problem(options_, "no memory for packets", rte_errno);
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

std::unique_ptr<Datapath> Port::open_engine(std::size_t engine) {
  return std::make_unique<PortDatapath>(*this, engine);
}

// --- One engine's datapath ----------------------------------------------------------------------

PortDatapath::PortDatapath(Port& port, std::size_t engine)
    : port_(port),
      engine_(engine),
      address_(port.options_.address),
      neighbours_(port.self_),
      hand_over_(port.exchange_, engine) {
  const std::uint16_t ports = port.options_.local_ports;
  address_.port = static_cast<std::uint16_t>(port.first_udp_port_ + engine * ports);
  for (std::uint16_t i = 0; i < ports; ++i) {
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
    if (packet->nb_segs == 1) {  // Buffers hold the largest frame.
      take_frame({rte_pktmbuf_mtod(packet, const std::byte*), packet->data_len});
    }
  }
  hand_over_.wake_takers();
  stats_.batches_received += received_count_ > 0 ? 1 : 0;
  if (port_.options_.engines > 1) {
    hand_over_.take(kBurst, arrivals_);
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

void PortDatapath::take_frame(std::span<const std::byte> frame) {  // hot
  const auto view = parse_frame(frame);
  const auto owner = view && view->destination.ip == address_.ip
                         ? port_.owners_.find(view->destination.port)
                         : std::nullopt;
  if (!owner) {
    take_other(frame);
    return;
  }
  ++stats_.packets_received;
  stats_.bytes_received += view->payload.size();
  const Route route{.peer = view->source, .local_port = owner->local_port};
  if (owner->engine == engine_) {
    arrivals_.push_back({.packet = view->payload, .route = route});
    return;
  }
  stats_.handed_over += hand_over_.give(owner->engine, route, view->payload) ? 1 : 0;
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

void PortDatapath::send(const Route& route,
                        std::span<const std::byte> head,
                        std::span<const std::byte> payload) {  // hot
  const auto hop = neighbours_.find(route.peer, now_);
  const std::size_t header = frame_header_bytes(address_.family);
  const std::size_t bytes = header + head.size() + payload.size();
  rte_mbuf* const packet = hop.mac && bytes <= port_.options_.mtu_bytes + kEthernetBytes
                               ? ::rte_pktmbuf_alloc(port_.pool_)
                               : nullptr;
  if (packet == nullptr) {
    ++stats_.send_errors;
  } else {
    auto* const at = reinterpret_cast<std::byte*>(
        ::rte_pktmbuf_append(packet, static_cast<std::uint16_t>(bytes)));
    const std::span<std::byte> frame(at, bytes);
    copy_bytes(payload, copy_bytes(head, frame.subspan(header)));
    Address source = address_;
    source.port = static_cast<std::uint16_t>(source.port + route.local_port);
    write_frame_headers({.source_mac = port_.self_.mac,
                         .destination_mac = *hop.mac,
                         .source = source,
                         .destination = route.peer},
                        frame);
    queue_[queued_++] = packet;
    ++stats_.packets_sent;
    stats_.bytes_sent += bytes - header;
  }
  if (hop.request) {
    send_arp(*hop.request);
  }
}

bool PortDatapath::flush(Time now) {  // hot
  now_ = now;
  is_busy_ = now - heard_at_ < kSilence;
  if (queued_ == 0) {
    return true;
  }
  const std::uint16_t sent =
      ::rte_eth_tx_burst(port_.id_, static_cast<std::uint16_t>(engine_), queue_.data(), queued_);
  stats_.batches_sent += sent > 0 ? 1 : 0;
  std::copy(queue_.begin() + sent, queue_.begin() + queued_, queue_.begin());
  queued_ = static_cast<std::uint16_t>(queued_ - sent);
  stats_.blocked += queued_ > 0 ? 1 : 0;
  return queued_ == 0;
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
