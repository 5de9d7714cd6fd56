// All-gather of small values through the store, by way of rank 0.
#pragma once

#include <string>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/clock.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/rendezvous/store.hpp"

namespace lightcc {

/// Publishes `value` under `key`/`rank` and returns the values of all ranks. Rank 0 collects and
/// publishes them together; when some do not come in time it publishes the failure instead, so that
/// every rank's error names them. Errors: kTimeout. Blocks: until `deadline` (a little longer
/// elsewhere than on rank 0).
Result<std::vector<Bytes>> exchange(
    Store& store, const std::string& key, int rank, int size, Bytes value, TimePoint deadline);

}  // namespace lightcc
