// What compression remembers, as a World tells it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/compression/residual/residual_store.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// ResidualStore::save(), tensor by tensor.
Result<std::vector<SavedCompression>> save_compression(const ResidualStore& store);
/// ResidualStore::scale() of the tensors `names` of a process set.
Status scale_compression(ResidualStore& store,
                         double factor,
                         std::uint32_t process_set,
                         const std::vector<std::string>& names);

}  // namespace lightcc
