#include "lightcc/engine/store_exchange.hpp"

#include <utility>

namespace lightcc {
namespace {

constexpr std::size_t kMaxValue = std::size_t{1} << 20;
// Other ranks wait a little longer than rank 0, to hear its explanation.
constexpr Duration kGrace = std::chrono::seconds(2);
constexpr Duration kAsk = std::chrono::milliseconds(500);

Result<Bytes> collect(
    Store& store, const std::string& key, int size, const Bytes& own, TimePoint deadline) {
  Bytes all;
  ByteWriter writer(all);
  writer.number(std::uint8_t{1});
  writer.blob(own);
  std::string missing;
  Status first_error;
  for (int rank = 1; rank < size; ++rank) {
    // Once a rank is missing, the others are only asked whether they are there already.
    auto value =
        store.get(key + '/' + std::to_string(rank), missing.empty() ? deadline : deadline + kAsk);
    if (value.ok()) {
      writer.blob(*value);
    } else {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      first_error = first_error.ok() ? value.status() : first_error;
    }
  }
  if (missing.empty()) {
    return all;
  }
  if (first_error.code() != ErrorCode::kTimeout) {
    return first_error;
  }
  return make_error(ErrorCode::kTimeout,
                    "ranks [%s] of %d did not join in time (HOROVOD_START_TIMEOUT)",
                    missing.c_str(),
                    size);
}

Bytes failure_blob(const Status& status) {
  Bytes blob;
  ByteWriter writer(blob);
  writer.number(std::uint8_t{0});
  writer.string(status.message());
  return blob;
}

Result<std::vector<Bytes>> parse(const Bytes& blob, int size) {
  ByteReader reader(blob);
  if (reader.number<std::uint8_t>() == 0) {
    return Status(ErrorCode::kTimeout, reader.string(kMaxValue));
  }
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

}  // namespace

Result<std::vector<Bytes>> exchange(
    Store& store, const std::string& key, int rank, int size, Bytes value, TimePoint deadline) {
  if (rank == 0) {
    auto all = collect(store, key, size, value, deadline);
    const Bytes blob = all.ok() ? std::move(all.value()) : failure_blob(all.status());
    LIGHTCC_RETURN_IF_ERROR(store.set(key + "/all", blob, deadline + kGrace));
    return parse(blob, size);
  }
  LIGHTCC_RETURN_IF_ERROR(store.set(key + '/' + std::to_string(rank), std::move(value), deadline));
  LIGHTCC_ASSIGN_OR_RETURN(const Bytes blob, store.get(key + "/all", deadline + kGrace));
  return parse(blob, size);
}

}  // namespace lightcc
