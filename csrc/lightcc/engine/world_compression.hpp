// What compression remembers, as a World tells it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/compression/topk_store.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {

/// TopkStore::save(), tensor by tensor.
Result<std::vector<SavedCompression>> save_compression(const TopkStore& store);
/// TopkStore::scale() of the tensors `names` of a process set.
Status scale_compression(TopkStore& store,
                         double factor,
                         std::uint32_t process_set,
                         const std::vector<std::string>& names);

}  // namespace lightcc
