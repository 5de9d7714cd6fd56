#include "runtime/random.hpp"

#include <sys/random.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>

namespace harp {

void fill_randomly(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = ::getrandom(out.data(), out.size(), 0);
    if (count > 0) {
      out = out.subspan(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::system_category(), "getrandom");
    }
  }
}

}  // namespace harp
