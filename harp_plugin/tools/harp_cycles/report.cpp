#include "report.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "protocol/packet.hpp"

namespace harp_cycles {
namespace {

/// What loop `index` takes longer than the one before it.
double step_of(const std::vector<Figure>& loops, std::size_t index) {
  return index == 0 ? loops[0].median_of(0) : median_difference(loops[index], 0, loops[index - 1]);
}

/// A side's rows, in the making: `loops` are its loops over stages.
class SideMaker {
 public:
  using Loops = std::vector<Figure> StageFigures::*;

  SideMaker(const char* name, Loops loops, const StageFigures& hot, const StageFigures& cold)
      : loops_(loops), hot_(hot), cold_(cold) {
    side_.name = name;
  }

  void stage(const char* name, std::size_t loop) { side_.stages.push_back(row_of(name, loop)); }
  /// What part `part` of the session takes longer than its stages, up to loop `loop`.
  void rest_of_session(const char* name, std::size_t part, std::size_t loop) {
    side_.stages.push_back({.name = name,
                            .hot = median_difference(hot_.session, part, (hot_.*loops_)[loop]),
                            .cold = median_difference(cold_.session, part, (cold_.*loops_)[loop])});
  }
  void acknowledgements(std::size_t part) {
    side_.stages.push_back({.name = "acknowledgement's share",
                            .hot = hot_.session.median_of(part),
                            .cold = cold_.session.median_of(part)});
  }
  /// Part `part` of the turns, and what the stages leave of it.
  Side finish(const char* name, std::size_t part, std::size_t header_loop) {
    side_.whole = {
        .name = name, .hot = hot_.turn.median_of(part), .cold = cold_.turn.median_of(part)};
    side_.hot_ns = median(hot_.turn.cycle_ns);
    side_.cold_ns = median(cold_.turn.cycle_ns);
    Row rest{.name = "rest of the turn: stack, ring, completions",
             .hot = side_.whole.hot,
             .cold = side_.whole.cold};
    for (const Row& stage : side_.stages) {
      rest.hot -= stage.hot;
      rest.cold -= stage.cold;
    }
    side_.stages.push_back(rest);
    side_.frame_headers = row_of("beside it: headers of a frame", header_loop);
    return side_;
  }

 private:
  Row row_of(const char* name, std::size_t loop) const {
    return {.name = name, .hot = step_of(hot_.*loops_, loop), .cold = step_of(cold_.*loops_, loop)};
  }

  Loops loops_;
  const StageFigures& hot_;
  const StageFigures& cold_;
  Side side_;
};

void print_row(const char* side, const char* mark, const Row& row) {
  std::printf("| %s | %s%s%s | %s%.0f%s | %s%.0f%s |\n",
              side,
              mark,
              row.name.c_str(),
              mark,
              mark,
              row.hot,
              mark,
              mark,
              row.cold,
              mark);
}

}  // namespace

Side transmit_side(const StageFigures& hot, const StageFigures& cold) {
  enum : std::size_t { kRecords, kPath, kPacing, kSeal, kCrc, kCopy, kHeaders };
  SideMaker side("transmit", &StageFigures::transmit, hot, cold);
  side.stage("cut, records", kRecords);
  side.stage("path", kPath);
  side.stage("pacing", kPacing);
  side.stage("header, MAC", kSeal);
  side.stage("CRC-32C of the payload", kCrc);
  side.rest_of_session("rest of the session: its state, timers, counters", 0, kCrc);
  side.acknowledgements(1);
  side.stage("copy into a frame", kCopy);
  return side.finish("the sender's turn", 0, kHeaders);
}

Side receive_side(const StageFigures& hot, const StageFigures& cold) {
  enum : std::size_t { kParse, kPlacement, kCrc, kCopy, kHeaders };
  SideMaker side("receive", &StageFigures::receive, hot, cold);
  side.stage("parse, lookup, MAC", kParse);
  side.stage("bitmap, placement", kPlacement);
  side.stage("CRC-32C of the payload", kCrc);
  side.rest_of_session("rest of the session: its state, liveness, counters", 2, kCrc);
  side.acknowledgements(3);
  side.stage("copy to its place", kCopy);
  return side.finish("the receiver's turn", 1, kHeaders);
}

void print_clock(const Clock& clock) {
  const double cycles = cycles_per_tick();
  std::printf(
      "Time-stamp counter %.2f GHz against the steady clock; the core now %.2f GHz. Times are\n"
      "counted in ticks, and given in cycles of the core at its rate during each repetition.\n",
      clock.ticks_per_ns,
      cycles * clock.ticks_per_ns);
}

void print_stages(const Shape& shape, const std::vector<Side>& sides) {
  std::printf(
      "\nMTU %zu: cycles per packet of %u bytes of payload\n\n"
      "| | stage | hot | cold |\n|---|---|---|---|\n",
      shape.mtu_bytes,
      unsigned{shape.pss});
  for (const Side& side : sides) {
    for (const Row& stage : side.stages) {
      print_row(side.name.c_str(), "", stage);
    }
    print_row(side.name.c_str(), "**", side.whole);
    print_row(side.name.c_str(), "", side.frame_headers);
  }
}

void print_rates(const Shape& shape, const std::vector<Side>& sides) {
  std::printf(
      "\n| MTU %zu, one core, one direction | cycles | GHz | Mpps | Gb/s of payload | Gb/s on the "
      "wire |\n|---|---|---|---|---|---|\n",
      shape.mtu_bytes);
  const double payload_bits = 8.0 * shape.pss;
  const double wire_bits =
      payload_bits + 8.0 * (harp::kHeaderBytes + harp::kIpUdpBytes + kWireOverheadBytes);
  const auto print = [&](const std::string& name, double cycles, double cycle_ns) {
    const double packets_per_ns = 1 / (cycle_ns * cycles);
    std::printf("| %s | %.0f | %.2f | %.2f | %.1f | %.1f |\n",
                name.c_str(),
                cycles,
                1 / cycle_ns,
                packets_per_ns * 1e3,
                packets_per_ns * payload_bits,
                packets_per_ns * wire_bits);
  };
  for (const Side& side : sides) {
    print(side.name + ", hot", side.whole.hot + side.frame_headers.hot, side.hot_ns);
    print(side.name + ", cold", side.whole.cold + side.frame_headers.cold, side.cold_ns);
  }
}

}  // namespace harp_cycles
