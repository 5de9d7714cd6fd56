// A kernel TCP connection that always has data, as competitor of HARP on a shared link: windows,
// acknowledgements and losses are modelled, bytes are not.
//
//   TcpFlow ==== Bottleneck ====> receiver     acknowledgements come back after a fixed delay
//
// Every transmission has a number of its own (as in QUIC), so nothing is ambiguous; the network
// keeps the order, so a packet is lost when three later ones have been acknowledged. What was lost
// is sent again as another packet: an endless stream needs no more. How much may be in flight, and
// how fast, is up to a TcpControl: CUBIC or BBR.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/time.hpp"
#include "sim/bottleneck.hpp"
#include "sim/simulator.hpp"

namespace harp::sim {

inline constexpr std::size_t kTcpSegmentBytes = 1448;
inline constexpr std::size_t kTcpPacketBytes = 1500;  ///< It counts the headers of IP and TCP.

/// What an acknowledgement tells.
struct TcpAck {
  Time now{};
  Duration rtt{};
  std::uint64_t delivered = 0;            ///< Packets, ever.
  std::uint64_t delivered_when_sent = 0;  ///< When the packet left that is acknowledged.
  double rate = 0;                        ///< Packets per second, between these two.
  std::uint32_t lost = 0;                 ///< Packets found lost by it.
  std::uint32_t in_flight = 0;            ///< After it.
};

class TcpControl {
 public:
  TcpControl() = default;
  TcpControl(const TcpControl&) = delete;
  TcpControl& operator=(const TcpControl&) = delete;
  virtual ~TcpControl() = default;

  virtual void on_ack(const TcpAck& ack) = 0;
  /// The first loss since everything that was in flight at the last one has been answered.
  virtual void on_congestion(Time now, std::uint32_t in_flight) = 0;
  /// Everything since the last on_congestion() has been answered.
  virtual void on_recovered() {}
  virtual void on_timeout(Time now) = 0;
  virtual double window_packets() const = 0;
  /// Packets per second; 0: whatever the window allows leaves at once.
  virtual double pacing_rate() const { return 0; }
  /// Packets that leave together when paced.
  virtual std::uint32_t burst_packets() const { return 1; }
};

class TcpFlow final : public Actor {
 public:
  TcpFlow(Simulator& simulator,
          Bottleneck& link,
          std::unique_ptr<TcpControl> control,
          Duration ack_delay);

  /// Sends from `from` on until `until`.
  void run(Time from, Time until);
  void act(Time now, std::uint64_t token) override;

  std::uint64_t delivered_bytes() const { return arrived_ * kTcpSegmentBytes; }
  std::uint64_t lost_packets() const { return lost_; }
  const TcpControl& control() const { return *control_; }

 private:
  enum Token : std::uint64_t { kStart, kPacing, kTimer, kFirstAck };

  struct Sent {
    Time at{};
    std::uint64_t delivered = 0;
    Time delivered_at{};
    Time first_sent_at{};
    bool is_acked = false;
  };

  void send(Time now);
  void on_ack(std::uint64_t number, Time now);
  std::uint32_t find_lost(std::uint64_t acked);
  void set_timer(Time now);
  void on_timer(Time now);

  Simulator& simulator_;
  Bottleneck& link_;
  std::unique_ptr<TcpControl> control_;
  Duration ack_delay_;
  std::size_t flow_;
  std::deque<Sent> sent_;
  std::uint64_t first_ = 0;  ///< Number of sent_.front().
  std::uint32_t in_flight_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t delivered_ = 0;
  Time delivered_at_{};
  Time first_sent_at_{};
  std::uint64_t recovery_ends_ = 0;  ///< Number of the first packet after the last congestion.
  bool in_recovery_ = false;
  Duration srtt_{};
  Time until_{};
  Time next_send_{};
  bool pacing_is_set_ = false;
  Time times_out_at_ = kNever;
  bool timer_is_set_ = false;
  int backoff_ = 0;
};

}  // namespace harp::sim
