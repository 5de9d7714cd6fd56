#include "protocol/loss_detection.hpp"

#include <chrono>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "protocol/path_set.hpp"
#include "protocol/sent_packets.hpp"

namespace harp::loss_detection_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Time kStart{std::chrono::seconds(1)};

struct Bench {
  Bench() : packets(0, 64), paths(2, 2), loss(milliseconds(2), milliseconds(250)) {
    for (PathIndex path = 0; path < 2; ++path) {
      for (int i = 0; i < 50; ++i) {
        paths.at(path).rtt.add_sample(milliseconds(1), milliseconds(1), kStart);
      }
    }
  }
  Psn send(PathIndex path, Time at) {
    const Psn psn = packets.next();
    packets.add();
    packets.on_sent(psn, path, paths.at(path).next_seq++, at);
    return psn;
  }
  std::vector<Psn> overtaken(Time at) {
    std::vector<Psn> lost;
    loss.find_overtaken(packets, paths, at, [&](Psn psn) {
      packets.on_lost(psn);
      lost.push_back(psn);
    });
    return lost;
  }
  std::vector<Psn> timed_out(Time at) {
    std::vector<Psn> lost;
    loss.find_timed_out(packets, paths, at, [&](Psn psn) {
      packets.on_lost(psn);
      lost.push_back(psn);
    });
    return lost;
  }

  SentPackets packets;
  PathSet paths;
  LossDetector loss;
};

TEST(LossDetection, a_packet_that_was_overtaken_on_its_path_is_lost_after_the_tolerance) {
  Bench bench;
  const Psn first = bench.send(0, kStart);
  const Psn second = bench.send(0, kStart);
  const Time acked = kStart + milliseconds(1);
  bench.packets.on_acked(second);
  EXPECT_TRUE(bench.paths.on_report(0, 2, acked));
  EXPECT_EQ(bench.loss.next_overtaken(bench.packets, bench.paths), acked + microseconds(125));
  EXPECT_TRUE(bench.overtaken(acked + microseconds(124)).empty());
  EXPECT_EQ(bench.overtaken(acked + microseconds(125)), std::vector<Psn>{first});
}

TEST(LossDetection, packets_of_other_paths_prove_nothing) {
  Bench bench;
  bench.send(0, kStart);
  const Psn second = bench.send(1, kStart);
  bench.packets.on_acked(second);
  bench.paths.on_report(1, 1, kStart + milliseconds(1));
  EXPECT_TRUE(bench.overtaken(kStart + milliseconds(100)).empty());
}

TEST(LossDetection, later_packets_wait_for_their_own_tolerance) {
  Bench bench;
  for (int i = 0; i < 4; ++i) {
    bench.send(0, kStart);
  }
  const Time acked = kStart + milliseconds(1);
  bench.packets.on_acked(1);
  bench.paths.on_report(0, 2, acked);
  bench.packets.on_acked(3);
  bench.paths.on_report(0, 4, acked + microseconds(100));
  EXPECT_EQ(bench.overtaken(acked + microseconds(130)), std::vector<Psn>{0});
  EXPECT_EQ(bench.overtaken(acked + microseconds(225)), std::vector<Psn>{2});
}

TEST(LossDetection, spurious_retransmissions_raise_the_tolerance_up_to_a_round_trip) {
  Bench bench;
  for (std::uint32_t report = 1; report < 20; ++report) {
    bench.loss.on_spurious_report(report);
  }
  bench.send(0, kStart);
  bench.send(0, kStart);
  bench.packets.on_acked(1);
  const Time acked = kStart + milliseconds(1);
  bench.paths.on_report(0, 2, acked);
  EXPECT_TRUE(bench.overtaken(acked + microseconds(999)).empty());
  EXPECT_EQ(bench.overtaken(acked + milliseconds(1)).size(), 1U);
}

TEST(LossDetection, a_timeout_takes_what_is_old_enough_and_backs_off) {
  Bench bench;
  bench.send(0, kStart);
  bench.send(1, kStart + milliseconds(10));
  const Duration rto = bench.loss.rto(bench.paths, 0);
  EXPECT_GE(rto, milliseconds(2));
  EXPECT_EQ(bench.loss.next_timeout(bench.packets, bench.paths), kStart + rto);
  EXPECT_TRUE(bench.timed_out(kStart + rto - Duration(1)).empty());
  EXPECT_EQ(bench.timed_out(kStart + rto), std::vector<Psn>{0});
  bench.loss.on_timeout();
  EXPECT_EQ(bench.loss.rto(bench.paths, 0), 2 * rto);
  for (int i = 0; i < 40; ++i) {
    bench.loss.on_timeout();
  }
  EXPECT_EQ(bench.loss.rto(bench.paths, 0), milliseconds(250));
  bench.loss.on_progress(kStart);
  EXPECT_EQ(bench.loss.rto(bench.paths, 0), rto);
}

TEST(LossDetection, a_peer_that_takes_long_to_answer_is_waited_for_and_a_gap_is_not) {
  Bench bench;
  const Duration before = bench.loss.rto(bench.paths, 0);
  for (int i = 0; i < 50; ++i) {
    bench.paths.at(0).rtt.add_sample(milliseconds(1), milliseconds(20), kStart);
  }
  EXPECT_LT(before, milliseconds(20));
  EXPECT_GT(bench.loss.rto(bench.paths, 0), milliseconds(40));
  bench.send(0, kStart);
  bench.send(0, kStart);
  bench.paths.on_report(0, 2, kStart + milliseconds(1));
  EXPECT_EQ(bench.overtaken(kStart + milliseconds(1) + microseconds(130)).size(), 2U)
      << "an eighth of the network's round trip later";
}

TEST(LossDetection, the_tail_is_probed_once_for_each_progress) {
  Bench bench;
  EXPECT_EQ(bench.loss.tail_probe_at(bench.packets, bench.paths), kNever);
  bench.send(0, kStart);
  bench.loss.on_sent(kStart);
  const Time due = kStart + milliseconds(2);  // Two responses.
  EXPECT_EQ(bench.loss.tail_probe_at(bench.packets, bench.paths), due);
  EXPECT_FALSE(bench.loss.take_tail_probe(bench.packets, bench.paths, due - Duration(1)));
  EXPECT_TRUE(bench.loss.take_tail_probe(bench.packets, bench.paths, due));
  EXPECT_FALSE(bench.loss.take_tail_probe(bench.packets, bench.paths, due + milliseconds(9)));
  bench.loss.on_progress(due);
  EXPECT_EQ(bench.loss.tail_probe_at(bench.packets, bench.paths), due + milliseconds(2));
}

}  // namespace
}  // namespace harp::loss_detection_test
