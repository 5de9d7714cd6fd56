#include "lightcc/engine/store_exchange.hpp"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lightcc/wire/store_messages.hpp"

namespace lightcc {
namespace {

// Other ranks wait a little longer than rank 0, to hear its explanation.
constexpr Duration kGrace = std::chrono::seconds(2);
constexpr Duration kAsk = std::chrono::milliseconds(500);
// How long better news than a lost connection may take, and how long the store to spread news.
constexpr Duration kUpdatePatience = std::chrono::milliseconds(500);
constexpr Duration kTelling = std::chrono::seconds(2);
// How often a rank that waits for its own part looks for what it has come to, and for the others'.
constexpr Duration kMadeInterval = std::chrono::milliseconds(10);
constexpr Duration kLookInterval = std::chrono::seconds(2);
constexpr std::size_t kMaxReason = 4096;

Status did_not_join(const std::string& ranks, const Joining& joining) {
  return make_error(ErrorCode::kTimeout,
                    "ranks [%s] of %d did not join in time; if they are slow to start, raise %s",
                    ranks.c_str(),
                    joining.size,
                    joining.limit.c_str());
}

// The ranks that have not come, as far as the store says so.
std::string missing_ranks(const Joining& joining, const std::string& key) {
  const TimePoint deadline = Clock::system().now() + kAsk;
  const auto view = joining.store.watch(key + '/', 0, deadline);
  std::set<std::string> come;
  for (std::size_t i = 0; view.ok() && i < view->entries.size(); ++i) {
    come.insert(view->entries[i].first);
  }
  std::string missing;
  for (int rank = 0; rank < joining.size && view.ok(); ++rank) {
    if (!come.contains(key + '/' + std::to_string(rank))) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return missing;
}

Result<std::vector<Bytes>> parse(const Bytes& blob, int size) {
  ByteReader reader(blob);
  std::vector<Bytes> values;
  for (int rank = 0; rank < size; ++rank) {
    const auto value = reader.blob(kMaxStoreShareBytes);
    values.emplace_back(value.begin(), value.end());
  }
  if (!reader.finished()) {
    return make_error(ErrorCode::kPeerFailed, "the store gathered something that does not parse");
  }
  return values;
}

// What this rank saw itself; everything else may be the consequence of another rank's failure.
bool is_firsthand(ErrorCode code) {
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kSystem ||
         code == ErrorCode::kUnimplemented || code == ErrorCode::kInternal;
}

Status signed_by(int rank, const Status& why) {
  if (why.rank() >= 0 || !is_firsthand(why.code())) {
    return why;
  }
  return {why.code(), "rank " + std::to_string(rank) + ": " + why.message(), rank};
}

// The failure that counts: one that may be another's consequence only where there is no other.
std::string cause_among(const std::vector<Bytes>& all) {
  std::string why;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader reader(all[rank]);
    const bool is_cause = reader.number<std::uint8_t>() != 0;
    const std::string text = reader.string(kMaxReason);
    if (!text.empty() && (why.empty() || is_cause)) {
      why = "rank " + std::to_string(rank) + ": " + text;
    }
    if (is_cause) {
      break;
    }
  }
  return why;
}

}  // namespace

Result<std::vector<Bytes>> exchange(const Joining& joining, const std::string& key, Bytes value) {
  const bool is_first = joining.rank == 0;
  const auto all = joining.round.gather(key,
                                        static_cast<std::uint32_t>(joining.rank),
                                        static_cast<std::uint32_t>(joining.size),
                                        std::move(value),
                                        is_first ? joining.deadline : joining.deadline + kGrace);
  if (all.ok()) {
    return parse(*all, joining.size);
  }
  const bool is_late = all.status().code() == ErrorCode::kTimeout;
  const std::string missing = is_late ? missing_ranks(joining, key) : std::string();
  // Where rank 0 has come, it says this for all.
  if (!missing.empty() && (is_first || joining.round.failure({}).ok())) {
    return did_not_join(missing, joining);
  }
  return all.status();
}

Result<std::string> agree(const Joining* joining,
                          const std::string& key,
                          const Made& made,
                          Duration patience) {
  const std::string failures = key + "/failed/";
  const Clock& clock = Clock::system();
  TimePoint next_look = clock.now() + kLookInterval;
  std::optional<Status> own;
  bool is_over = false;  // Another rank has told of a failure.
  while (!is_over && !(own = made(kMadeInterval)).has_value()) {
    const TimePoint now = clock.now();
    if (joining != nullptr) {
      LIGHTCC_RETURN_IF_ERROR(joining->round.failure(now));
    }
    if (joining != nullptr && now >= next_look) {
      const auto reported = joining->store.watch(failures, 0, now + kAsk);
      is_over = reported.ok() && !reported->entries.empty();
      next_look = now + kLookInterval;
    }
  }
  if (joining == nullptr) {
    return own->message();
  }
  Bytes said;
  ByteWriter writer(said);
  const bool has_failed = own.has_value() && !own->ok();
  writer.number(static_cast<std::uint8_t>(has_failed && is_firsthand(own->code())));
  writer.string(has_failed ? own->message() : std::string());
  if (has_failed) {  // Were it not told, others would wait for longer.
    (void)joining->store.set(failures + std::to_string(joining->rank), {}, clock.now() + kTelling);
  }
  Joining later = *joining;
  later.deadline = clock.now() + patience;
  LIGHTCC_ASSIGN_OR_RETURN(const std::vector<Bytes> all, exchange(later, key, std::move(said)));
  return cause_among(all);
}

Status give_up(const Joining& joining, const Status& seen) {
  const TimePoint now = Clock::system().now();
  Status reported = joining.round.failure(is_firsthand(seen.code()) ? now : now + kUpdatePatience);
  if (!reported.ok() && (reported.message() == seen.message() || !is_firsthand(seen.code()))) {
    return reported;
  }
  const Status own = signed_by(joining.rank, seen);
  const Status counts = joining.round.fail(own, now + kTelling);
  return is_firsthand(seen.code()) ? Status(seen.code(), seen.message(), own.rank()) : counts;
}

void stay_away(
    Store& store, const std::string& prefix, int rank, const Status& why, TimePoint deadline) {
  const Status own = signed_by(rank, why);
  auto round = store.join(prefix, own, deadline);
  if (round.ok()) {
    (void)round.value()->fail(own, deadline);
  }
}

}  // namespace lightcc
