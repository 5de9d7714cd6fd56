#include "lightcc/engine/completion.hpp"

#include <exception>

#include "lightcc/base/log.hpp"
#include "lightcc/engine/completion_threads.hpp"
#include "lightcc/engine/world.hpp"

namespace lightcc {
namespace {

thread_local int completion_depth = 0;  // One may run inside another.

}  // namespace

bool is_in_completion() {
  return completion_depth > 0;
}

void run_completion(const std::function<void()>& completion) {
  ++completion_depth;
  try {
    completion();
  } catch (const std::exception& error) {
    LIGHTCC_LOG(LogLevel::kError, "a completion threw an exception: %s", error.what());
  } catch (...) {
    LIGHTCC_LOG(LogLevel::kError, "a completion threw an exception of an unknown type");
  }
  --completion_depth;
}

void let_other_completions_run() {
  CompletionThreads::step_aside();
}

Status refused_in_completion(const char* what) {
  return make_error(ErrorCode::kInvalidArgument,
                    "%s is not possible inside a completion (a done callback): it would wait for "
                    "the thread that runs it",
                    what);
}

}  // namespace lightcc
