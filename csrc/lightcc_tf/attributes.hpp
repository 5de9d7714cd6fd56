// What a node of a graph says of its operation. The names of attributes are in saved graphs, so
// they do not change.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/types.hpp"
#include "lightcc/engine/operation.hpp"
#include "lightcc/engine/world.hpp"

#include "tf_api.hpp"

namespace lightcc::tf {

/// One collective as its node asks for it; the same in each of its steps.
struct Collective {
  Operation prototype;              ///< Without name and tensors.
  std::optional<std::string> name;  ///< Name of the call; none: the engine numbers it.
  std::vector<std::string> names;   ///< Name of each tensor; empty: they share `name`.
  Grouping grouping = Grouping::kNone;
  bool is_tuned = false;  ///< The last input says how each tensor is compressed.

  OpType op() const { return prototype.request.signature.op; }
};

/// Reads the attributes of one node. `is_list`: it takes a list of tensors. `is_tuned`: what it
/// lacks of compression is in an input. Errors: kInvalidArgument names the attribute.
Result<Collective> read_collective(KernelConstruction* node,
                                   OpType op,
                                   bool is_list,
                                   bool is_tuned);

/// Reads one text. Errors: kInvalidArgument names the attribute.
Result<std::string> read_text(KernelConstruction* node, const char* attribute);
/// Reads one integer. Errors: kInvalidArgument names the attribute.
Result<std::int64_t> read_integer(KernelConstruction* node, const char* attribute);

}  // namespace lightcc::tf
