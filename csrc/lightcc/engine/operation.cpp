#include "lightcc/engine/operation.hpp"

#include <algorithm>
#include <cstdlib>

namespace lightcc {

OutputBuffer::OutputBuffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + kAlignment - 1) & ~(kAlignment - 1);
  if (rounded >= bytes) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  }
}

OutputBuffer::~OutputBuffer() {
  std::free(data_);
}

}  // namespace lightcc
