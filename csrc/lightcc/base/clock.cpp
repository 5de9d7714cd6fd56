#include "lightcc/base/clock.hpp"

namespace lightcc {
namespace {

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock& Clock::system() {
  static const SystemClock kClock;
  return kClock;
}

}  // namespace lightcc
