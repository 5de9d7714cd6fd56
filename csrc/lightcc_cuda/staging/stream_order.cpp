#include "lightcc_cuda/staging/stream_order.hpp"

#include <map>
#include <utility>

#include "lightcc_cuda/driver/context.hpp"

namespace lightcc::cuda {
namespace {

class DriverStreamOrder final : public StreamOrder,
                                public std::enable_shared_from_this<DriverStreamOrder> {
 public:
  explicit DriverStreamOrder(std::string file) : file_(std::move(file)) {}

  Result<std::int32_t> device_of(const void* address) override {
    LIGHTCC_RETURN_IF_ERROR(open());
    const auto asked = static_cast<Address>(reinterpret_cast<std::uintptr_t>(address));
    Owner owner;
    Code known = ask(asked, owner);
    if (known == kErrorInvalidContext) {  // Some drivers want a current one, whichever it is.
      LIGHTCC_ASSIGN_OR_RETURN(const Context* const context, context_in_use());
      if (context != nullptr) {
        const CurrentContext current(*context);
        LIGHTCC_RETURN_IF_ERROR(current.status());
        known = ask(asked, owner);
      }
    }
    if (known == kErrorInvalidValue || known == kErrorInvalidContext ||
        (known == kSuccess && owner.kind != kMemoryOfDevice)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the memory at address 0x%llx is no GPU's",
                        static_cast<unsigned long long>(asked));
    }
    LIGHTCC_RETURN_IF_ERROR(driver_->check(known, "cuPointerGetAttribute"));
    return owner.device;
  }

  Result<std::shared_ptr<ReadyEvent>> record(const std::vector<GpuStream>& streams,
                                             Timing timing) override {
    LIGHTCC_RETURN_IF_ERROR(open());
    auto events = std::make_shared<StreamEvents>(shared_from_this(), notifiers_);
    for (const GpuStream& stream : streams) {
      LIGHTCC_ASSIGN_OR_RETURN(const Context* const context, context_of(stream.device));
      if (!stream.handle.has_value()) {
        continue;
      }
      const CurrentContext current(*context);
      LIGHTCC_RETURN_IF_ERROR(current.status());
      auto* const handle = reinterpret_cast<StreamHandle*>(*stream.handle);  // NOLINT: a handle
      LIGHTCC_ASSIGN_OR_RETURN(const bool captured, is_captured(*driver_, handle));
      if (captured) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the current stream of cuda:%d is being captured into a CUDA graph, "
                          "which operations between ranks cannot be part of: call them outside "
                          "of the capture",
                          stream.device);
      }
      LIGHTCC_RETURN_IF_ERROR(events->record(*context, handle, timing));
    }
    return std::shared_ptr<ReadyEvent>(events->empty() ? nullptr : std::move(events));
  }

 private:
  Status open() {
    if (!driver_.has_value()) {
      LIGHTCC_ASSIGN_OR_RETURN(driver_, Driver::open(file_));
    }
    return {};
  }

  struct Owner {
    unsigned kind = 0;
    int device = 0;
  };
  Code ask(Address address, Owner& owner) const {
    const auto attribute = driver_->call().address_attribute;
    const Code known = attribute(&owner.kind, kMemoryKindOfAddress, address);
    return known != kSuccess || owner.kind != kMemoryOfDevice
               ? known
               : attribute(&owner.device, kDeviceOfAddress, address);
  }

  /// That of a GPU which somebody uses; null: nobody uses one. Making one would take its memory.
  Result<const Context*> context_in_use() {
    int count = 0;
    LIGHTCC_RETURN_IF_ERROR(driver_->device_count(&count));
    for (int index = 0; index < count; ++index) {
      Device device = 0;
      unsigned flags = 0;
      int is_active = 0;
      LIGHTCC_RETURN_IF_ERROR(driver_->device(&device, index));
      LIGHTCC_RETURN_IF_ERROR(driver_->context_state(device, &flags, &is_active));
      if (is_active != 0) {
        return context_of(index);
      }
    }
    return static_cast<const Context*>(nullptr);
  }

  Result<const Context*> context_of(std::int32_t device) {
    const auto found = contexts_.find(device);
    if (found != contexts_.end()) {
      return &found->second;
    }
    int count = 0;
    LIGHTCC_RETURN_IF_ERROR(driver_->device_count(&count));
    if (device < 0 || device >= count) {
      return make_error(ErrorCode::kInvalidArgument,
                        "there is no cuda:%d: this process has %d GPU%s",
                        device,
                        count,
                        count == 1 ? "" : "s");
    }
    LIGHTCC_ASSIGN_OR_RETURN(Context context, Context::retain(*driver_, device));
    return &contexts_.emplace(device, std::move(context)).first->second;
  }

  const std::string file_;
  std::optional<Driver> driver_;
  std::map<std::int32_t, Context> contexts_;  // They go before the driver.
  Notifiers notifiers_;                       // They go before their contexts.
};

}  // namespace

std::shared_ptr<StreamOrder> make_stream_order(std::string file) {
  return std::make_shared<DriverStreamOrder>(std::move(file));
}

}  // namespace lightcc::cuda
