// Refuses what no group can do, in one place for all of them.
#pragma once

#include <memory>

#include "lightcc/base/export.hpp"
#include "lightcc/collectives/group.hpp"

namespace lightcc {

/// `group` behind checks of all arguments: what cannot be done ends with kInvalidArgument before
/// `group` hears of it, which can go on. Null: `group` is.
LIGHTCC_EXPORT std::unique_ptr<Group> make_checked_group(std::unique_ptr<Group> group);

}  // namespace lightcc
