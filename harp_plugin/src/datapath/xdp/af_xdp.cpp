#include "datapath/xdp/af_xdp.hpp"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "base/bytes.hpp"
#include "base/counter.hpp"
#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "datapath/frame.hpp"
#include "datapath/next_hops.hpp"
#include "datapath/udp.hpp"
#include "datapath/unique_fd.hpp"
#include "datapath/wire_counters.hpp"
#include "datapath/xdp/bpf_program.hpp"
#include "datapath/xdp/xsk.hpp"

namespace harp {
namespace {

constexpr std::size_t kBurst = 64;
constexpr std::size_t kHandOverPackets = 1024;
constexpr int kMaxTurnsWithoutSockets = 8;
constexpr Duration kRetry = std::chrono::microseconds(20);

/// The queues on which the interface receives now.
std::size_t queue_count(const std::string& interface) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request{};
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) {
    return 1;  // Drivers with one queue need not answer.
  }
  return std::clamp<std::size_t>(
      channels.rx_count + channels.combined_count, 1, BpfProgram::kMaxQueues);
}

}  // namespace

// --- The device ---------------------------------------------------------------------------------

AfXdpDevice::AfXdpDevice(const AfXdpOptions& options)
    : options_(options), exchange_(options.engines, options.sockets.mtu_bytes, kHandOverPackets) {}

std::shared_ptr<AfXdpDevice> AfXdpDevice::open(const AfXdpOptions& options, std::string* error) {
  const std::shared_ptr<AfXdpDevice> device(new AfXdpDevice(options));
  *error = device->set_up();
  return error->empty() ? device : nullptr;
}

std::string AfXdpDevice::set_up() {
  std::string error;
  const auto link = find_link(options_.interface, &error);
  if (!link) {
    return error;
  }
  link_ = *link;
  queues_ = queue_count(options_.interface);
  if (options_.engines > queues_) {
    return options_.interface + " has " + std::to_string(queues_) +
           " queue(s), and so at most as " + "many engines with AF_XDP, not " +
           std::to_string(options_.engines);
  }
  std::size_t& mtu = options_.sockets.mtu_bytes;
  const bool has_pieces = mtu + kEthernetBytes > Xsk::kMaxWithoutPieces;
  if (has_pieces && Xsk::open({.interface = options_.interface,
                               .interface_index = link_.index,
                               .queue = 0,
                               .frame_bytes = mtu + kEthernetBytes},
                              &error) == nullptr) {
    mtu = Xsk::kMaxWithoutPieces - kEthernetBytes;
  }
  program_ = BpfProgram::attach({.interface = options_.interface,
                                 .interface_index = link_.index,
                                 .address = options_.sockets.local,
                                 .mtu_bytes = mtu,
                                 .has_pieces = has_pieces},
                                &error);
  return program_ != nullptr ? "" : error;
}

std::unique_ptr<Datapath> AfXdpDevice::open_engine(std::size_t engine, std::string* error) {
  auto datapath = std::make_unique<AfXdpDatapath>(shared_from_this(), engine);
  *error = datapath->set_up();
  return error->empty() ? std::move(datapath) : nullptr;
}

// --- One engine's datapath ----------------------------------------------------------------------

AfXdpDatapath::AfXdpDatapath(std::shared_ptr<AfXdpDevice> device, std::size_t engine)
    : device_(std::move(device)), engine_(engine), hand_over_(device_->exchange_, engine) {}

AfXdpDatapath::~AfXdpDatapath() {
  if (sockets_ != nullptr) {
    for (std::uint16_t i = 0; i < sockets_->local_ports(); ++i) {
      device_->owners_.clear(sockets_->port(i));
      (void)device_->program_->set_port(sockets_->port(i), /*is_taken=*/false);
    }
  }
}

std::string AfXdpDatapath::set_up() {
  const AfXdpOptions& options = device_->options_;
  std::string error;
  next_hops_ = NextHops::open(device_->link_.index, &error);
  if (next_hops_ == nullptr) {
    return error;
  }
  poll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t queue = engine_; queue < device_->queues_; queue += options.engines) {
    error = open_queue(static_cast<std::uint32_t>(queue));
    if (!error.empty()) {
      return error;
    }
  }
  sockets_ = UdpDatapath::open(options.sockets, &error);
  if (sockets_ == nullptr) {
    return error;
  }
  if (!watch(sockets_->descriptor()) || !watch(hand_over_.descriptor())) {
    return "epoll: " + std::system_category().message(errno);
  }
  for (std::uint16_t i = 0; i < sockets_->local_ports(); ++i) {
    device_->owners_.set(
        sockets_->port(i),
        {.engine = static_cast<std::uint8_t>(engine_), .local_port = static_cast<std::uint8_t>(i)});
    if (!device_->program_->set_port(sockets_->port(i), /*is_taken=*/true)) {
      return "BPF map: " + std::system_category().message(errno);
    }
  }
  return {};
}

std::string AfXdpDatapath::open_queue(std::uint32_t queue) {
  std::string error;
  auto xsk = Xsk::open({.interface = device_->options_.interface,
                        .interface_index = device_->link_.index,
                        .queue = queue,
                        .frame_bytes = device_->mtu_bytes() + kEthernetBytes},
                       &error);
  if (xsk == nullptr) {
    return error;
  }
  if (!watch(xsk->descriptor()) || !device_->program_->set_socket(queue, xsk->descriptor())) {
    return "AF_XDP socket: " + std::system_category().message(errno);
  }
  queues_.push_back(std::move(xsk));
  return {};
}

bool AfXdpDatapath::watch(int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

std::span<const Arrival> AfXdpDatapath::receive() {  // hot
  arrivals_.clear();
  for (const auto& queue : queues_) {
    const auto frames = queue->receive(kBurst);
    for (const auto frame : frames) {
      take_frame(frame);
    }
    stats_.bytes_copied_in += queue->bytes_joined();
    stats_.batches_received += frames.empty() ? 0 : 1;
  }
  hand_over_.wake_takers();
  if (device_->options_.engines > 1) {
    hand_over_.take_astray(kBurst, arrivals_);
  }
  if (++turns_without_sockets_ >= kMaxTurnsWithoutSockets) {
    turns_without_sockets_ = 0;
    const auto slow = sockets_->receive();
    arrivals_.insert(arrivals_.end(), slow.begin(), slow.end());
  }
  return arrivals_;
}

void AfXdpDatapath::take_frame(std::span<const std::byte> frame) {  // hot
  const auto view = parse_frame(frame);
  const auto owner = view ? device_->owners_.find(view->destination_port) : std::nullopt;
  if (owner) {
    hand_over_.deliver(*view, *owner, arrivals_, stats_);
  }
}

std::size_t AfXdpDatapath::room() const {
  return std::min(sockets_->room(), queues_.front()->room());
}

void AfXdpDatapath::send(const Route& route,
                         std::span<const std::byte> head,
                         std::span<const std::byte> payload) {  // hot
  const auto neighbour = next_hops_->find(route.peer, now_);
  if (!neighbour) {
    sockets_->send(route, head, payload);
    return;
  }
  const std::size_t header = frame_header_bytes(route.peer.family);
  const std::size_t bytes = header + head.size() + payload.size();
  if (bytes > device_->mtu_bytes() + kEthernetBytes) {
    ++stats_.send_errors;
    return;
  }
  Xsk& out = *queues_.front();
  const std::span<std::byte> frame = out.allocate().first(bytes);
  copy_bytes(payload, copy_bytes(head, frame.subspan(header)));
  Address source = sockets_->address();
  source.port = sockets_->port(route.local_port);
  write_frame_headers({.source_mac = device_->link_.mac,
                       .destination_mac = *neighbour,
                       .source = source,
                       .destination = route.peer},
                      frame);
  out.send(bytes);
  stats_.bytes_copied_out += payload.size();
  ++stats_.packets_sent;
  stats_.bytes_sent += bytes - header;
}

bool AfXdpDatapath::flush(Time now) {  // hot
  now_ = now;
  const bool is_drained = queues_.front()->flush();
  const bool has_room = queues_.front()->room() >= kBurst;
  retry_at_ = is_drained && has_room ? kNever : now + kRetry;
  stats_.blocked += is_drained ? 0 : 1;
  return sockets_->flush(now) && is_drained;
}

Time AfXdpDatapath::next_deadline() const {
  return std::min(retry_at_, sockets_->next_deadline());
}

bool AfXdpDatapath::prepare_to_wait() {
  turns_without_sockets_ = kMaxTurnsWithoutSockets;  // What wakes the caller may be one of them.
  return hand_over_.prepare_to_wait() &&
         std::ranges::none_of(queues_, [](const auto& queue) { return queue->anything_there(); });
}

DatapathStats AfXdpDatapath::stats() const {
  DatapathStats all = stats_;
  add_counters(kWireCounters, sockets_->stats(), all);
  return all;
}

}  // namespace harp
