// Sessions and TCP connections that share one bottleneck: who gets how much of it, and how long the
// queue is.
//
//   HARP client 1 --\                        /-- HARP server 1
//   HARP client 2 ----== one Bottleneck ==------ HARP server 2
//   TCP (CUBIC)   --/                        \-- receiver
//
// Every session has two hosts of its own, and sends messages of one size without end; answers come
// back by a wire that is never full. Contents are not checked here: harp_scenarios does that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.hpp"
#include "protocol/session.hpp"
#include "sim/bottleneck.hpp"
#include "sim/host.hpp"
#include "sim/simulator.hpp"
#include "sim/tcp_flow.hpp"
#include "sim/wire.hpp"

namespace harp::sim {

struct SharedLinkConfig {
  double bits_per_s = 1e9;
  Duration queue{};       ///< A full bottleneck delays by it.
  Duration round_trip{};  ///< The path has it without a queue.
  std::uint64_t seed = 1;
  bool competes = false;  ///< Sessions take a share where others keep a queue.
};

/// What happened between two times.
struct Shares {
  std::vector<double> harp;  ///< Parts of the link's rate, in the order of add_harp().
  std::vector<double> tcp;
  double mean_queue_s = 0;
  double max_queue_s = 0;

  double harp_sum() const;
  double tcp_sum() const;
};

/// Jain's index: 1 where all are equal, 1/n where one has everything.
double fairness(const std::vector<double>& shares);

/// Sends and receives messages of one size, always as many at once.
class EndlessTraffic final : public Application {
 public:
  explicit EndlessTraffic(bool sends) : sends_(sends) {}

  void on_event(Session& session, const Event& event, Time now) override;
  void on_accept(Session& session, Time now) override;
  std::uint64_t received_bytes() const;
  void stop() { is_over_ = true; }
  bool has_failed() const { return has_failed_; }

 private:
  void post(Session& session, Time now);

  bool sends_;
  bool is_over_ = false;
  bool has_failed_ = false;
  std::size_t posted_ = 0;
  Session* session_ = nullptr;
  std::vector<std::byte> buffer_;
};

class SharedLink final : public Actor {
 public:
  explicit SharedLink(const SharedLinkConfig& config);

  /// A session that begins to send at `from`, and has nothing more to send from `until` on.
  void add_harp(Time from, Time until = kNever);
  void add_cubic(Time from, Time until = kNever);
  void add_bbr(Time from, Time until = kNever);

  void run_until(Time at);
  /// Counts from the last call until `at`.
  Shares measure_until(Time at);
  void act(Time now, std::uint64_t token) override;

  const Session& session(std::size_t index) const { return *pairs_[index]->session; }
  const TcpFlow& tcp(std::size_t index) const { return *tcp_[index]; }

 private:
  struct Pair {
    Pair(SharedLink& link, std::uint64_t seed);
    void start();

    EndlessTraffic sender;
    EndlessTraffic receiver;
    Wire up;    ///< It leads from the client to the queue.
    Wire down;  ///< It leads from the server to the client.
    Host client;
    Host server;
    std::uint64_t seed;
    bool competes;
    std::size_t flow = 0;
    Session* session = nullptr;
  };

  void add_tcp(std::unique_ptr<TcpControl> control, Time from, Time until);
  std::vector<std::uint64_t> harp_bytes() const;
  std::vector<std::uint64_t> tcp_bytes() const;

  static constexpr std::uint64_t kSample = ~std::uint64_t{0};

  SharedLinkConfig config_;
  Simulator simulator_;
  Bottleneck link_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<std::unique_ptr<TcpFlow>> tcp_;
  double queue_sum_s_ = 0;
  double max_queue_s_ = 0;
  std::uint64_t samples_ = 0;
};

}  // namespace harp::sim
