#include "lightcc/collectives/mpi_comms.hpp"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace lightcc {
namespace {

constexpr int kTag = 0x4c49;  // Of communicators in the making, among the program's own.
constexpr auto kPatienceAtEnd = std::chrono::seconds(2);

}  // namespace

/// The thread and what it has to do. Both the thread and whoever asks hold it.
class MpiComm::Maker {
 public:
  Maker(std::shared_ptr<const MpiLibrary> library, int world_rank)
      : library_(std::move(library)), world_rank_(world_rank) {}

  const MpiLibrary& library() const { return *library_; }
  int world_rank() const { return world_rank_; }

  void add(std::function<void()> job) {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  /// Of the thread: does all jobs until stop() is called and none is left.
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) {
        break;
      }
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // It may hold the last reference to a communicator, whose end is a job.
      lock.lock();
    }
    ended_ = true;
    changed_.notify_all();
  }

  /// Waits for the end of run(), within reason; false: it has not come.
  bool stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    return changed_.wait_for(lock, kPatienceAtEnd, [this] { return ended_; });
  }

  /// Makes `made` of `ranks` in the communicator `parent`. Blocks: for all of them.
  void create(MpiHandle parent, const std::vector<int>& ranks, MpiComm& made) const {
    made.status_ = try_create(parent, ranks, &made.handle_);
    made.is_done_.store(true, std::memory_order_release);
  }

  void free(MpiHandle comm) const {
    if (library_->check_not_finalized().ok()) {
      (void)library_->calls().comm_free(&comm);
    }
  }

 private:
  Status try_create(MpiHandle parent, const std::vector<int>& ranks, MpiHandle* made) const {
    const MpiCalls& mpi = library_->calls();
    MpiHandle all = nullptr;
    LIGHTCC_RETURN_IF_ERROR(check(mpi.comm_group(parent, &all), "MPI_Comm_group"));
    MpiHandle group = nullptr;
    int code = mpi.group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &group);
    (void)mpi.group_free(&all);
    LIGHTCC_RETURN_IF_ERROR(check(code, "MPI_Group_incl"));
    code = mpi.comm_create_group(parent, group, kTag, made);
    (void)mpi.group_free(&group);
    LIGHTCC_RETURN_IF_ERROR(check(code, "MPI_Comm_create_group"));
    return check(mpi.comm_set_errhandler(*made, library_->errors_return()),
                 "MPI_Comm_set_errhandler");
  }

  Status check(int code, const char* call) const {
    return library_->status_of(code, call, world_rank_);
  }

  const std::shared_ptr<const MpiLibrary> library_;
  const int world_rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  bool ended_ = false;
};

MpiComm::~MpiComm() {
  // What is not made yet is made before later jobs, and then stays.
  if (is_done_.load(std::memory_order_acquire) && status_.ok() && handle_ != nullptr &&
      !is_kept_.load(std::memory_order_relaxed)) {
    maker_->add([maker = maker_.get(), handle = handle_] { maker->free(handle); });
  }
}

Result<bool> MpiComm::is_made() const {
  if (!is_done_.load(std::memory_order_acquire)) {
    return false;
  }
  return status_.ok() ? Result<bool>(true) : status_;
}

const MpiLibrary& MpiComm::library() const {
  return maker_->library();
}

int MpiComm::world_rank() const {
  return maker_->world_rank();
}

Result<std::unique_ptr<MpiComms>> MpiComms::make(const MpiSite& site, int world_rank) {
  LIGHTCC_ASSIGN_OR_RETURN(auto library, MpiLibrary::open(site.library));
  LIGHTCC_RETURN_IF_ERROR(library->check_usable());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle, which may be a number.
  const auto parent = reinterpret_cast<MpiHandle>(site.comm);
  if (!library->is_comm(parent)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "MPI cannot carry the data: the communicator is not of the binary interface "
                      "of %s, but perhaps of MPI 5's standard one (mpi4py: set MPI4PY_MPIABI)",
                      site.library.c_str());
  }
  const auto maker = std::make_shared<MpiComm::Maker>(std::move(library), world_rank);
  std::unique_ptr<MpiComms> comms(new MpiComms(maker));
  try {
    comms->thread_ = std::make_unique<std::thread>([maker] {
      (void)::pthread_setname_np(::pthread_self(), "lightcc-mpi");
      maker->run();
    });
  } catch (const std::system_error& error) {
    return make_system_error(
        ErrorCode::kSystem, error.code().value(), "cannot start a thread for MPI");
  }
  comms->world_ = std::make_shared<MpiComm>(maker);
  maker->add([maker = maker.get(), parent, ranks = site.ranks, world = comms->world_] {
    maker->create(parent, ranks, *world);
  });
  return comms;
}

MpiComms::~MpiComms() {
  world_.reset();
  if (thread_ != nullptr && maker_->stop()) {
    thread_->join();
  } else {
    (void)thread_.release();  // It waits in MPI until the process ends.
  }
}

std::shared_ptr<MpiComm> MpiComms::ask(const std::vector<std::int32_t>& ranks) {
  auto made = std::make_shared<MpiComm>(maker_);
  maker_->add([maker = maker_.get(), world = world_, ranks, made] {
    if (const Result<bool> parent = world->is_made(); !parent.ok()) {
      made->status_ = parent.status();
      made->is_done_.store(true, std::memory_order_release);
      return;
    }
    maker->create(world->handle(), {ranks.begin(), ranks.end()}, *made);
  });
  return made;
}

}  // namespace lightcc
