// The level between blocks, for memory of another kind: a member's shards come to the host, are
// all-reduced by the groups of the host's plane, and go back. So a grid may have blocks of any kind
// of group (grid_group.hpp), and only shards are copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/collectives/grid/grid_group.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/engine/staged/staging.hpp"

namespace lightcc {

/// One for each inter group of `host`, the host plane's for the same lane of the same set. Each is
/// for all-reduces of one GPU's memory, whose inputs and outputs are not null, and refuses all
/// else. What fails, or is dropped before its end, ends `host` when the group ends. `staging`
/// outlives them.
LIGHTCC_EXPORT std::vector<std::unique_ptr<Group>> make_staged_exchanges(
    const std::shared_ptr<GridState>& host, Staging& staging, std::int32_t device);

}  // namespace lightcc
