#include "runtime/stat_publisher.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

#include "base/counter.hpp"
#include "base/time.hpp"
#include "datapath/address.hpp"
#include "datapath/datapath.hpp"
#include "datapath/wire_counters.hpp"
#include "protocol/path_set.hpp"
#include "protocol/session.hpp"
#include "protocol/types.hpp"
#include "runtime/counter_tables.hpp"
#include "runtime/stack.hpp"
#include "sync/seq_words.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp {
namespace {

using enum StatKind;

constexpr std::size_t kDeviceWords = 4;
constexpr std::size_t kNameWords = 2;
constexpr std::size_t kAddressWords = 6;

constexpr std::array kEngineOthers{
    StatField{kLabel, kDeviceWords, "device", "", "Interface, or DPDK's device"},
    StatField{kLabel, 0, "engine", "", "Number among the device's"},
    StatField{kInfo, kNameWords, "datapath", "", "What carries packets"},
    StatField{kInfo, kNameWords, "mode", "", "Who runs turns"},
    StatField{kInfo, kAddressWords, "address", "", "Where peers send to"},
    StatField{kGauge, 0, "mtu_bytes", "bytes", "Largest IP packet"},
    StatField{kGauge, 0, "sessions", "sessions", "Sessions there are"},
};

constexpr std::array kSessionOthers{
    StatField{kLabel, 0, "session", "", "The number by which its peer addresses it"},
    StatField{kLabel, kAddressWords, "peer", "", "The peer's address"},
    StatField{kInfo, kNameWords, "state", "", "connecting, open, closing, lingering, finished"},
    StatField{kGauge, 0, "age_ns", "ns", "Since it began to connect"},
    StatField{kGauge, 0, "payload_bytes", "bytes", "Most payload of one packet"},
    StatField{kGauge, 0, "smoothed_rtt_ns", "ns", "Round trip on its best path; 0: unknown"},
    StatField{kGauge, 0, "minimum_rtt_ns", "ns", "Least of the last ten seconds; 0: unknown"},
    StatField{kGauge, 0, "window_packets", "packets", "What may be in flight"},
    StatField{kGauge, 0, "in_flight_packets", "packets", "What is in flight"},
    StatField{kGauge, 0, "pacing_rate", "bytes/s", "How fast packets leave; 0: at once"},
    StatField{kGauge, 0, "rate_is_capped", "", "1: a policer was found"},
    StatField{kGauge, 0, "paths", "paths", "Paths there are"},
    StatField{kGauge, 0, "usable_paths", "paths", "Paths not in quarantine"},
    StatField{kCounter, 0, "eager_bytes_copied", "bytes", "Payload that came before its receive"},
};

constexpr std::array kPathFields{
    StatField{kLabel, 0, "path", "", "Its number"},
    StatField{kGauge, 0, "smoothed_rtt_ns", "ns", "Round trip; 0: unknown"},
    StatField{kGauge, 0, "minimum_rtt_ns", "ns", "Least of the last ten seconds; 0: unknown"},
    StatField{kGauge, 0, "in_flight_packets", "packets", "What is in flight"},
    StatField{kGauge, 0, "is_quarantined", "", "1: gets probes only"},
};

/// Fields, and behind them the counters of each table.
template <std::size_t Count, typename... Tables>
constexpr auto fields_of(const std::array<StatField, Count>& others, const Tables&... tables) {
  std::array<StatField, (Count + ... + std::tuple_size_v<Tables>)> fields;
  auto end = std::ranges::copy(others, fields.begin()).out;
  const auto append = [&](const auto& table) {
    for (const auto& counter : table) {
      *end++ = {kCounter, 0, counter.name, counter.unit, counter.help};
    }
  };
  (append(tables), ...);
  return fields;
}

constexpr auto kEngineFields =
    fields_of(kEngineOthers, kStackCounters, kWireCounters, kSessionCounters);
constexpr auto kSessionFields = fields_of(kSessionOthers, kSessionCounters);
static_assert(std::ranges::all_of(kEngineFields, &StatField::fits) &&
              std::ranges::all_of(kSessionFields, &StatField::fits) &&
              std::ranges::all_of(kPathFields, &StatField::fits));

template <typename Stats, std::size_t Count>
void write_counters(const std::array<Counter<Stats>, Count>& table,
                    const Stats& stats,
                    StatWriter& out) {
  for (const Counter<Stats>& counter : table) {
    out.number(stats.*counter.value);
  }
}

std::uint64_t ns(Duration duration) {
  return duration.count() > 0 ? static_cast<std::uint64_t>(duration.count()) : 0;
}

std::uint64_t whole(double value) {
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

void write_path(const Session& session, PathIndex index, StatWriter& out) {
  const Path& path = session.paths().at(index);
  const bool is_known = path.rtt.has_sample();
  out.number(index);
  out.number(is_known ? ns(path.rtt.smoothed()) : 0);
  out.number(is_known ? ns(path.rtt.minimum()) : 0);
  out.number(session.sent_packets().in_flight_on(index));
  out.number(path.in_quarantine ? 1 : 0);
}

std::uint64_t usable_paths(const PathSet& paths) {
  std::uint64_t usable = 0;
  for (std::size_t index = 0; index < paths.count(); ++index) {
    usable += paths.at(static_cast<PathIndex>(index)).in_quarantine ? 0 : 1;
  }
  return usable;
}

void write_session(const SessionView& view, Time now, StatWriter& out) {
  const Session& session = *view.session;
  const PathSet& paths = session.paths();
  const std::size_t shown = std::min(paths.count(), StatPublisher::kMaxPaths);
  out.number(shown);
  out.number(paths.count());
  out.number(session.local_cid());
  out.text(to_string(view.peer), kAddressWords);
  out.text(session.state_name(), kNameWords);
  out.number(ns(now - session.started()));
  out.number(session.pss());
  out.number(ns(paths.best_rtt()));
  out.number(ns(paths.min_rtt()));
  out.number(whole(session.congestion().window_packets()));
  out.number(session.sent_packets().in_flight());
  out.number(whole(session.pacer().rate()));
  out.number(session.congestion().rate_is_capped() ? 1 : 0);
  out.number(paths.count());
  out.number(usable_paths(paths));
  out.number(session.eager_bytes_copied());
  write_counters(kSessionCounters, session.stats(), out);
  for (std::size_t path = 0; path < shown; ++path) {
    write_path(session, static_cast<PathIndex>(path), out);
  }
}

}  // namespace

StatLayout StatPublisher::layout(std::size_t engines) {
  return {.engine = kEngineFields,
          .session = kSessionFields,
          .path = kPathFields,
          .max_sessions = kMaxSessions,
          .max_paths = kMaxPaths,
          .blocks = engines};
}

StatPublisher::StatPublisher(EngineLabels labels, std::span<std::uint64_t> block)
    : labels_(std::move(labels)),
      block_(block),
      owner_(::getpid()),
      sessions_(kMaxSessions),
      values_(layout(1).value_words()) {}

void StatPublisher::publish(const Stack& stack, Time now) {
  if (::getpid() != owner_) {
    return;
  }
  const std::size_t shown = stack.list_sessions(sessions_);
  StatWriter out(values_);
  out.number(ns(now.time_since_epoch()));
  out.number(shown);
  out.number(stack.session_count());
  write_engine(stack, out);
  const std::size_t stride = layout(1).session_words();
  const std::size_t first = out.written();
  for (std::size_t i = 0; i < shown; ++i) {
    out.skip_to(first + i * stride);
    write_session(sessions_[i], now, out);
  }
  out.skip_to(first + shown * stride);
  block_.write(std::span(values_).first(std::min(out.written(), values_.size())));
}

void StatPublisher::write_engine(const Stack& stack, StatWriter& out) const {
  out.text(labels_.device, kDeviceWords);
  out.number(labels_.index);
  out.text(labels_.datapath, kNameWords);
  out.text(labels_.mode, kNameWords);
  out.text(to_string(stack.datapath().address()), kAddressWords);
  out.number(stack.datapath().mtu_bytes());
  out.number(stack.session_count());
  write_counters(kStackCounters, stack.stats(), out);
  write_counters(kWireCounters, stack.datapath().stats(), out);
  write_counters(kSessionCounters, stack.session_stats(), out);
}

}  // namespace harp
