// A tensor as the engine sees it: where it lies and what it holds. A reference owns nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// Where a tensor lies.
struct Memory {
  MemoryKind kind = MemoryKind::kHost;
  std::int32_t device = 0;  ///< Its number among those of its kind.
  bool operator==(const Memory&) const = default;
};

/// "host", "cuda:1".
inline std::string memory_text(const Memory& memory) {
  const std::string kind = memory_kind_name(memory.kind);
  return memory.kind == MemoryKind::kHost ? kind : kind + ':' + std::to_string(memory.device);
}

/// A contiguous tensor, aligned to its element size.
struct TensorRef {
  void* data = nullptr;  ///< Written only where the tensor is an output.
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape{};
  Memory memory{};
};

}  // namespace lightcc
