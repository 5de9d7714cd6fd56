// Named all-reduces that come again, as those of a training step do.
//
// Python asks for one by World.repeat_allreduce() first. Where a tensor of the same kind was
// all-reduced under that name before, the engine does that operation again (World::repeat()).
// Nothing is made but the result, and no handle. It is called by Python's own protocol, since
// pybind11 takes longer to find a function and its arguments than the rest takes altogether.
// Whatever is not quite the same, or wrong, is left to World.allreduce(). Not handled: memory of
// GPUs, compression that the call asks for, and more than one tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <pybind11/pybind11.h>

#include "lightcc/engine/world.hpp"

#include "tensors.hpp"

namespace lightcc::bindings {

/// What has to be the same as before.
struct RepeatedKind {
  std::int64_t op = 0;  ///< A ReduceOp.
  double prescale = 1.0;
  double postscale = 1.0;
  std::uint32_t process_set = 0;
  bool operator==(const RepeatedKind&) const = default;
};

/// One that the engine was told repeats.
struct RepeatedAllreduce {
  RepeatedKind kind;
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;
  Handle handle;  ///< Null: it was never started.
};

/// Thread: any that holds the GIL.
class Repeats {
 public:
  /// Remembers `operation`, which has a name and is about to be started.
  std::shared_ptr<RepeatedAllreduce> expect(const Operation& operation);
  /// Null: there is none.
  std::shared_ptr<const RepeatedAllreduce> find(std::string_view name,
                                                const RepeatedKind& kind) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::shared_ptr<const RepeatedAllreduce>, Hash, std::equal_to<>>
      known_;
};

/// Gives the class World, which is `type`, its method repeat_allreduce().
void register_repeats(pybind11::handle type);

}  // namespace lightcc::bindings
