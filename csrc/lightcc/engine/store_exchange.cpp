#include "lightcc/engine/store_exchange.hpp"

#include <utility>

namespace lightcc {
namespace {

constexpr std::size_t kMaxValue = std::size_t{1} << 20;
// Other ranks wait a little longer than rank 0, to hear its explanation.
constexpr Duration kGrace = std::chrono::seconds(2);
constexpr Duration kAsk = std::chrono::milliseconds(500);
// How long better news than a lost connection may take, and how long the store to spread news.
constexpr Duration kUpdatePatience = std::chrono::milliseconds(500);
constexpr Duration kTelling = std::chrono::seconds(2);

Status did_not_join(const std::string& ranks, const Joining& joining) {
  return make_error(ErrorCode::kTimeout,
                    "ranks [%s] of %d did not join in time (%s)",
                    ranks.c_str(),
                    joining.size,
                    joining.limit.c_str());
}

Result<Bytes> collect(const Joining& joining, const std::string& key, const Bytes& own) {
  Bytes all;
  ByteWriter writer(all);
  writer.blob(own);
  std::string missing;
  Status first_error;
  for (int rank = 1; rank < joining.size; ++rank) {
    const std::string rank_key = key + '/' + std::to_string(rank);
    // Once a rank is missing, the others are only asked whether they are there already, over
    // another connection: the round still waits for the missing one.
    auto value = missing.empty() ? joining.round.get(rank_key, joining.deadline)
                                 : joining.store.get(rank_key, joining.deadline + kAsk);
    if (value.ok()) {
      writer.blob(*value);
    } else {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      first_error = first_error.ok() ? value.status() : first_error;
      if (first_error.code() != ErrorCode::kTimeout) {
        return first_error;
      }
    }
  }
  return missing.empty() ? Result<Bytes>(std::move(all)) : did_not_join(missing, joining);
}

Result<std::vector<Bytes>> parse(const Bytes& blob, int size) {
  ByteReader reader(blob);
  std::vector<Bytes> values;
  for (int rank = 0; rank < size; ++rank) {
    const auto value = reader.blob(kMaxValue);
    values.emplace_back(value.begin(), value.end());
  }
  if (!reader.finished()) {
    return make_error(ErrorCode::kPeerFailed, "rank 0 published something that does not parse");
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

}  // namespace

Result<std::vector<Bytes>> exchange(const Joining& joining, const std::string& key, Bytes value) {
  const std::string key_of_all = key + "/all";
  if (joining.rank == 0) {
    LIGHTCC_ASSIGN_OR_RETURN(const Bytes all, collect(joining, key, value));
    LIGHTCC_RETURN_IF_ERROR(joining.round.set(key_of_all, all, joining.deadline + kGrace));
    return parse(all, joining.size);
  }
  LIGHTCC_RETURN_IF_ERROR(joining.round.set(
      key + '/' + std::to_string(joining.rank), std::move(value), joining.deadline));
  const auto all = joining.round.get(key_of_all, joining.deadline + kGrace);
  if (all.status().code() == ErrorCode::kTimeout && joining.round.failure({}).ok()) {
    return did_not_join("0", joining);
  }
  LIGHTCC_RETURN_IF_ERROR(all.status());
  return parse(all.value(), joining.size);
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
