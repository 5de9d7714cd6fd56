// A live pair of sessions whose wire and applications are driven by the input.
//
// Each step is two bytes: what to do, and with which packet in transit: deliver, drop, copy, delay,
// damage, or (as somebody who knows the key could) change the header and seal it again; post,
// close, abort, let time pass. While nobody who knows the key has lied, what is received is what
// was sent, once; in any case no request completes twice and nothing is written outside its buffer
// (ASan).
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "protocol/auth.hpp"
#include "protocol/listener.hpp"
#include "protocol/packet.hpp"
#include "protocol/session.hpp"

namespace {

using namespace harp;  // NOLINT(google-build-using-namespace): a fuzzer is about nothing else.

constexpr std::uint64_t kListenId = 1;
constexpr Secret kSecret{};
constexpr std::size_t kMessages = 12;

void require(bool claim) {
  if (!claim) {
    __builtin_trap();
  }
}

SessionConfig config_of(bool is_client) {
  SessionConfig config;
  config.local_cid = is_client ? 0x11 : 0x22;
  config.nonce[0] = is_client ? std::byte{1} : std::byte{2};
  config.seed = is_client ? 1 : 2;
  config.max_pss = 64;
  config.paths = 2;
  config.flows = 8;
  config.window_packets = 64;
  config.max_sends = 8;
  config.max_receives = 8;
  config.eager_packets = 4;
  config.initial_psn = 0xfffffff0;
  config.initial_msg = 0xfffffffe;
  config.peer_timeout = std::chrono::seconds(2);
  return config;
}

std::size_t size_of(std::size_t message) {
  return message * message * 11 % 300;
}

std::byte content(std::size_t message, std::size_t at, bool from_client) {
  return static_cast<std::byte>(message * 37 + at * 3 + (from_client ? 1 : 0));
}

struct End {
  bool is_client = false;
  std::unique_ptr<Session> session;
  std::deque<std::vector<std::byte>> arriving;
  std::vector<std::vector<std::byte>> outbox;
  std::vector<std::unique_ptr<std::byte[]>> inbox;
  std::vector<std::size_t> capacities;
  std::vector<int> send_ends = std::vector<int>(kMessages);
  std::vector<int> receive_ends = std::vector<int>(kMessages);
  std::size_t sent = 0;
};

class Pair {
 public:
  Pair() : listener_(kListenId, kSecret, 2) {
    for (End* end : {&client_, &server_}) {
      end->is_client = end == &client_;
      for (std::size_t message = 0; message < kMessages; ++message) {
        auto& bytes = end->outbox.emplace_back(size_of(message));
        for (std::size_t at = 0; at < bytes.size(); ++at) {
          bytes[at] = content(message, at, end->is_client);
        }
      }
    }
    client_.session = std::make_unique<Session>(config_of(true), kSecret, kListenId, now_);
  }

  void step(std::uint8_t what, std::uint8_t which) {
    End& end = (what & 1) != 0 ? client_ : server_;
    auto& queue = end.arriving;
    const std::size_t index = queue.empty() ? 0 : which % queue.size();
    switch ((what >> 1) % 12) {
      case 0:
      case 1:
      case 2:
        deliver(end, index, true);
        break;
      case 3:
        deliver(end, index, false);  // And again later.
        break;
      case 4:
        erase(end, index);
        break;
      case 5:
        damage(end, index, which);
        break;
      case 6:
        forge(end, index, which);
        break;
      case 7:
        post_send(end);
        break;
      case 8:
        post_receive(end, which);
        break;
      case 9:
        now_ += std::chrono::microseconds(1U << (which % 22));
        break;
      case 10:
        while (!queue.empty()) {
          deliver(end, 0, true);
        }
        break;
      default:
        finish(end, which);
        break;
    }
    pump();
  }

 private:
  void deliver(End& end, std::size_t index, bool remove) {
    if (end.arriving.empty()) {
      return;
    }
    // A copy of the exact size, so that reading behind it is seen.
    const std::vector<std::byte> packet = end.arriving[index];
    if (remove) {
      erase(end, index);
    }
    if (!end.is_client && !accept(packet)) {
      return;
    }
    // Longer than the world exists: the clock of arrivals was set.
    const Duration waited = ++delivered_ % 8 == 0 ? Duration(std::chrono::hours(1)) : Duration{};
    const Reception how{.is_astray = delivered_ % 2 == 0, .waited = waited};
    const Placement placement = end.session->on_packet(packet, now_, how);
    if (placement.action == Placement::Action::kCopy && !placement.payload.empty()) {
      std::memcpy(placement.to, placement.payload.data(), placement.payload.size());
    }
  }
  /// Whether the server's session is there to take the packet.
  bool accept(std::span<const std::byte> packet) {
    if (!server_.session) {
      const auto answer = listener_.on_packet(packet);
      if (answer.verdict == Listener::Verdict::kNew) {
        server_.session =
            std::make_unique<Session>(config_of(false), kSecret, answer.syn, answer.tx_time, now_);
        listener_.add(answer.syn.nonce, server_.session->local_cid());
      }
      return false;
    }
    return true;
  }
  static void erase(End& end, std::size_t index) {
    if (!end.arriving.empty()) {
      end.arriving.erase(end.arriving.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
  static void damage(End& end, std::size_t index, std::uint8_t which) {
    if (!end.arriving.empty()) {
      auto& packet = end.arriving[index];
      packet[(which * 7U) % packet.size()] ^= static_cast<std::byte>(1U << (which % 8));
    }
  }
  void forge(End& end, std::size_t index, std::uint8_t which) {
    if (end.arriving.empty()) {
      return;
    }
    auto& packet = end.arriving[index];
    packet[which % kAuthenticatedHeaderBytes] ^= static_cast<std::byte>(1U << (which % 7));
    if (packet.size() > kHeaderBytes) {
      packet[kHeaderBytes + which % (packet.size() - kHeaderBytes)] ^= std::byte{0x41};
    }
    const auto view = parse_packet(packet);
    if (!view) {
      return;
    }
    has_lied_ = true;
    const SessionKeys keys =
        derive_session_keys(kSecret, config_of(true).nonce, config_of(false).nonce);
    const Key key = view->header.type == PacketType::kSyn ? syn_key(kSecret)
                    : end.is_client                       ? keys.server_to_client
                                                          : keys.client_to_server;
    seal_packet(key, view->header, view->body, packet);
  }
  void post_send(End& end) {
    if (end.session && end.sent < kMessages) {
      const auto result = end.session->post_send(
          {.data = end.outbox[end.sent], .tag = 9, .cookie = end.sent}, now_);
      end.sent += result == PostResult::kPosted ? 1 : 0;
    }
  }
  void post_receive(End& end, std::uint8_t which) {
    if (!end.session || end.inbox.size() >= kMessages) {
      return;
    }
    const std::size_t message = end.inbox.size();
    const std::size_t capacity = which == 255 ? 0 : size_of(message) + which % 3;
    auto buffer = std::make_unique<std::byte[]>(capacity);
    const auto result = end.session->post_receive(
        {.buffer = std::span(buffer.get(), capacity), .cookie = message}, now_);
    if (result == PostResult::kPosted) {
      end.inbox.push_back(std::move(buffer));
      end.capacities.push_back(capacity);
    }
  }
  void finish(End& end, std::uint8_t which) {
    if (end.session && which % 16 == 0) {
      end.session->cancel(now_);
    } else if (end.session && which % 4 == 0) {
      end.session->close(now_);
    }
  }
  void pump() {
    for (End* end : {&client_, &server_}) {
      if (!end->session) {
        continue;
      }
      End& other = end == &client_ ? server_ : client_;
      TransmitPacket packet;
      int packets = 0;
      while (end->session->poll_transmit(now_, packet)) {
        require(++packets < 2000);
        auto& bytes = other.arriving.emplace_back(
            packet.head.begin(),
            packet.head.begin() + static_cast<std::ptrdiff_t>(packet.head_bytes));
        bytes.insert(bytes.end(), packet.payload.begin(), packet.payload.end());
      }
      take_events(*end);
      require(end->session->next_deadline() > now_ || end->session->is_finished());
    }
  }
  void take_events(End& end) {
    Event event;
    while (end.session->poll_event(event)) {
      if (event.kind == Event::Kind::kSendDone) {
        require(++end.send_ends[event.cookie] == 1);
      } else if (event.kind == Event::Kind::kReceiveDone) {
        require(++end.receive_ends[event.cookie] == 1);
        check_content(end, event);
      }
    }
  }
  void check_content(const End& end, const Event& event) const {
    if (has_lied_ || event.error != SessionError::kNone) {
      return;
    }
    require(event.bytes == size_of(event.cookie) && event.tag == 9);
    for (std::size_t at = 0; at < event.bytes; ++at) {
      require(end.inbox[event.cookie][at] == content(event.cookie, at, !end.is_client));
    }
  }

  Time now_{std::chrono::seconds(1)};
  std::uint64_t delivered_ = 0;  ///< Packets; every second one came astray.
  Listener listener_;
  End client_;
  End server_;
  bool has_lied_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Pair pair;
  pair.step(18, 0);  // Time passes, and the SYN leaves.
  for (std::size_t at = 0; at + 1 < std::min<std::size_t>(size, 4096); at += 2) {
    pair.step(data[at], data[at + 1]);
  }
  return 0;
}
