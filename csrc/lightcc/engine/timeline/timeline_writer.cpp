#include "lightcc/engine/timeline/timeline_writer.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "lightcc/base/log.hpp"

namespace lightcc {
namespace {

constexpr Duration kBetweenLooks = std::chrono::milliseconds(20);
constexpr std::size_t kBatchBytes = std::size_t{1} << 18;

}  // namespace

Result<std::unique_ptr<TimelineWriter>> TimelineWriter::start(const std::string& path,
                                                              const TimelineOrigin& origin,
                                                              std::size_t capacity) {
  const auto refused = [&](int error_number) {
    return make_system_error(ErrorCode::kInvalidArgument,
                             error_number,
                             "the timeline '%s' cannot be written",
                             path.c_str());
  };
  // O_NONBLOCK: a FIFO without a reader is an error and not a wait.
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  struct stat about{};
  if (!file.valid() || ::fstat(file.get(), &about) != 0) {
    return refused(errno);
  }
  if (!S_ISREG(about.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the timeline '%s' cannot be written: it is not a regular file",
                      path.c_str());
  }
  if (::ftruncate(file.get(), 0) != 0) {
    return refused(errno);
  }
  std::unique_ptr<TimelineWriter> writer(
      new TimelineWriter(path, std::move(file), capacity, origin.start));
  const std::string head = TimelineEncoder::head(origin);
  if (!writer->write_at(head, 0)) {
    return refused(errno);
  }
  writer->end_ = static_cast<std::int64_t>(head.size() - kTimelineEnd.size());
  try {
    writer->thread_ = std::thread([raw = writer.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return make_system_error(
        ErrorCode::kSystem, error.code().value(), "cannot start the timeline's thread");
  }
  return writer;
}

TimelineWriter::~TimelineWriter() {
  if (!thread_.joinable()) {
    return;
  }
  device_rows_->close();
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  thread_.join();
  if (lost_ > 0) {
    LIGHTCC_LOG(LogLevel::kWarning,
                "the timeline '%s' lacks %llu events: the file system was too slow for them",
                path_.c_str(),
                static_cast<unsigned long long>(lost_));
  }
}

// hot
void TimelineWriter::push(const TimelineRecord& record) {
  if (unsaid_ > 0) {
    TimelineRecord gap;
    gap.at_ns = record.at_ns;
    gap.event = TimelineEvent::kLost;
    gap.number = unsaid_;
    if (try_push(gap)) {
      unsaid_ = 0;
    }
  }
  if (unsaid_ > 0 || !try_push(record)) {
    ++unsaid_;
    ++lost_;
  }
}

// hot
bool TimelineWriter::try_push(const TimelineRecord& record) {
  const std::uint64_t position = pushed_.load(std::memory_order_relaxed);
  const std::uint64_t queued = position - taken_.load(std::memory_order_acquire);
  if (queued == queue_.size()) {
    return false;
  }
  queue_[position & (queue_.size() - 1)] = record;
  pushed_.store(position + 1, std::memory_order_release);
  if (queued + 1 == queue_.size() / 2) {
    hurry();
  }
  return true;
}

void TimelineWriter::define(std::uint32_t name, std::string text) {
  const MutexLock lock(mutex_);
  names_.emplace_back(name, std::move(text));
}

void TimelineWriter::hurry() {
  const MutexLock lock(mutex_);
  hurry_ = true;
  changed_.notify_one();
}

void TimelineWriter::run() {
  (void)::pthread_setname_np(::pthread_self(), "lightcc-trace");
  bool stop = false;
  while (!stop) {
    {
      const MutexLock lock(mutex_);
      if (!stop_ && !hurry_) {
        (void)changed_.wait_for(mutex_, kBetweenLooks);
      }
      hurry_ = false;
      stop = stop_;
    }
    write_queued();
  }
  std::string rest;
  encoder_.close(last_at_ns_, rest);
  if (unsaid_ > 0) {  // The pushing thread is done: it asked for the stop.
    TimelineRecord gap;
    gap.at_ns = last_at_ns_;
    gap.event = TimelineEvent::kLost;
    gap.number = unsaid_;
    encoder_.encode(gap, rest);
  }
  append(rest);
}

void TimelineWriter::write_queued() {
  const std::uint64_t until = pushed_.load(std::memory_order_acquire);
  {
    const MutexLock lock(mutex_);  // After `until` was read: names come before their records.
    for (auto& [name, text] : names_) {
      encoder_.define(name, std::move(text));
    }
    names_.clear();
  }
  std::string text;
  for (std::uint64_t position = taken_.load(std::memory_order_relaxed); position < until;
       ++position) {
    const TimelineRecord record = queue_[position & (queue_.size() - 1)];
    taken_.store(position + 1, std::memory_order_release);
    encoder_.encode(record, text);
    last_at_ns_ = record.at_ns;
    if (text.size() >= kBatchBytes) {
      append(text);
    }
  }
  device_row_encoder_.encode(device_rows_->take(), text);
  append(text);
}

/// Puts `text` before the file's end, which moves, and empties it.
void TimelineWriter::append(std::string& text) {
  if (!text.empty() && is_writable_) {
    const auto size = static_cast<std::int64_t>(text.size());
    text.append(kTimelineEnd);
    if (write_at(text, end_)) {
      end_ += size;
    } else {
      const int error_number = errno;
      is_writable_ = false;
      // Back to what was complete, which needs no more room than there was.
      if (::ftruncate(file_.get(), end_) == 0) {
        (void)write_at(kTimelineEnd, end_);
      }
      const Status error = make_system_error(
          ErrorCode::kSystem, error_number, "the timeline '%s' ends here", path_.c_str());
      LIGHTCC_LOG(LogLevel::kWarning, "%s", error.message().c_str());
    }
  }
  text.clear();
}

bool TimelineWriter::write_at(std::string_view text, std::int64_t offset) const {
  while (!text.empty()) {
    const ssize_t count = ::pwrite(file_.get(), text.data(), text.size(), offset);
    if (count < 0 && errno != EINTR) {
      return false;
    }
    if (count > 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
      offset += count;
    }
  }
  return true;
}

}  // namespace lightcc
