// Two sessions, joined by an array of frames.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "base/time.hpp"
#include "bench.hpp"
#include "buffers.hpp"
#include "frames.hpp"
#include "protocol/events.hpp"
#include "protocol/handshake.hpp"
#include "protocol/packet.hpp"
#include "protocol/session.hpp"
#include "shape.hpp"
#include "stages.hpp"

namespace harp_cycles {
namespace {

constexpr std::size_t kBurst = kMaxTakenPackets;
constexpr std::uint64_t kListenId = 9;

harp::SessionConfig config_of(const Shape& shape, harp::Cid cid) {
  harp::SessionConfig config;
  config.local_cid = cid;
  config.nonce.fill(static_cast<std::byte>(cid));
  config.seed = cid;
  config.max_pss = shape.pss;
  config.queue_allowance = kPatience;
  config.min_rto = kPatience;
  return config;
}

class SessionBench final : public Bench {
 public:
  explicit SessionBench(const Shape& shape)
      : shape_(shape),
        buffers_(shape),
        frames_(shape, shape.batch_packets + kBurst),
        packets_(kBurst),
        client_(config_of(shape, 1), secret_, kListenId, now_) {
    connect();
    post();
  }

  void step(Tally& tally) override {
    std::size_t sent = 0;
    for (std::size_t count = 1; count > 0 && sent < shape_.batch_packets; sent += count) {
      count = send_burst(tally, sent);  // None: the window is still small.
    }
    require(sent > 0, "a client that does not transmit");
    for (std::size_t first = 0; first < sent; first += kBurst) {
      receive_burst(tally, first, std::min(kBurst, sent - first));
    }
    take_acknowledgements(tally);
    tally.packets += sent;
    settle();
  }
  std::uint64_t checked() const override { return buffers_.checked(); }

 private:
  /// The whole of a packet that is about to leave.
  static std::span<std::byte> copy_to(const harp::TransmitPacket& packet,
                                      std::span<std::byte> room) {
    const auto head = std::span<const std::byte>(packet.head).first(packet.head_bytes);
    (void)harp::copy_bytes(packet.payload, harp::copy_bytes(head, room));
    return room.first(packet.head_bytes + packet.payload.size());
  }

  void connect() {
    std::vector<std::byte> bytes(shape_.mtu_bytes);
    harp::TransmitPacket& packet = packets_.front();
    require(client_.poll_transmit(now_, packet), "a client without a SYN");
    const auto view = harp::parse_packet(copy_to(packet, bytes));
    const auto syn = view ? harp::parse_syn(view->body) : std::nullopt;
    require(syn.has_value(), "a SYN that is none");
    server_.emplace(config_of(shape_, 2), secret_, *syn, view->header.tx_time, now_);
    for (int round = 0; round < 4; ++round) {
      now_ += kBurstInterval;
      while (server_->poll_transmit(now_, packet)) {
        (void)client_.on_packet(copy_to(packet, bytes), now_);
      }
      while (client_.poll_transmit(now_, packet)) {
        (void)server_->on_packet(copy_to(packet, bytes), now_);
      }
    }
    require(client_.is_connected() && server_->is_connected() && client_.pss() == shape_.pss,
            "sessions that do not connect");
  }

  void post() {
    for (; posted_ < completed_ + shape_.outstanding; ++posted_) {
      const auto received =
          server_->post_receive({.buffer = buffers_.prepare(posted_), .cookie = posted_}, now_);
      const auto sent =
          client_.post_send({.data = buffers_.source(posted_), .tag = 7, .cookie = posted_}, now_);
      require(received == harp::PostResult::kPosted && sent == harp::PostResult::kPosted,
              "a session that takes no more");
    }
  }

  std::size_t send_burst(Tally& tally, std::size_t first) {
    now_ += kBurstInterval;
    std::size_t count = 0;
    tally.time(0, [&] {
      while (count < kBurst && client_.poll_transmit(now_, packets_[count])) {
        ++count;
      }
    });
    for (std::size_t i = 0; i < count; ++i) {
      const auto packet = copy_to(packets_[i], frames_.room(first + i).subspan(kFrameHeaderBytes));
      frames_.set_length(first + i, kFrameHeaderBytes + packet.size());
    }
    return count;
  }

  void receive_burst(Tally& tally, std::size_t first, std::size_t count) {
    now_ += kBurstInterval;
    tally.time(2, [&] {
      for (std::size_t i = 0; i < count; ++i) {
        placements_[i] = server_->on_packet(frames_.packet(first + i), now_);
      }
    });
    for (std::size_t i = 0; i < count; ++i) {
      require(placements_[i].action == harp::Placement::Action::kCopy, "a packet without a place");
      std::memcpy(placements_[i].to, placements_[i].payload.data(), placements_[i].payload.size());
    }
    bool has_answer = false;
    tally.time(3, [&] { has_answer = server_->poll_transmit(now_, answer_); });
    require(has_answer && !server_->poll_transmit(now_, answer_), "no acknowledgement");
    answers_.emplace_back(shape_.mtu_bytes);
    answers_.back().resize(copy_to(answer_, answers_.back()).size());
  }

  void take_acknowledgements(Tally& tally) {
    now_ += kBurstInterval;
    for (const auto& answer : answers_) {
      tally.time(1, [&] { (void)client_.on_packet(answer, now_); });
    }
    answers_.clear();
    const harp::SessionStats& stats = client_.stats();
    require(stats.data_bytes_retransmitted == 0 && stats.bad_auth + stats.bad_packets == 0 &&
                server_->stats().duplicates == 0,
            "packets that were lost");
  }

  void settle() {
    harp::Event event;
    while (server_->poll_event(event)) {
      if (event.kind == harp::Event::Kind::kReceiveDone) {
        require(event.error == harp::SessionError::kNone && event.cookie == received_,
                "a message out of order");
        buffers_.check(received_++);
      }
    }
    while (client_.poll_event(event)) {
      if (event.kind == harp::Event::Kind::kSendDone) {
        require(event.error == harp::SessionError::kNone, "a message that failed");
        ++completed_;
      }
    }
    require(completed_ == received_, "a message without an acknowledgement");
    post();
  }

  Shape shape_;
  Buffers buffers_;
  Frames frames_;
  std::vector<harp::TransmitPacket> packets_;
  std::array<harp::Placement, kBurst> placements_;
  harp::TransmitPacket answer_;
  std::vector<std::vector<std::byte>> answers_;
  harp::Secret secret_{};
  harp::Time now_{std::chrono::seconds(1)};
  harp::Session client_;
  std::optional<harp::Session> server_;
  std::uint64_t posted_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t completed_ = 0;
};

}  // namespace

std::unique_ptr<Bench> session_bench(const Shape& shape) {
  return std::make_unique<SessionBench>(shape);
}

}  // namespace harp_cycles
