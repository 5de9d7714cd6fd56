// The entries of the tables, each under the version in which it took its present form.
//
// Version 12 is written against core.hpp; every older version is a translation to the next newer
// one, and only of what that one changed. A table (export.cpp) picks for each entry the newest form
// that it knows. Entries never throw.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/layout.hpp"

namespace harp::plugin {

namespace v12 {
abi::Result init(void** context,
                 std::uint64_t comm_id,
                 abi::CommConfig* config,
                 abi::Logger logger,
                 abi::Profiler profiler) noexcept;
abi::Result devices(int* count) noexcept;
abi::Result get_properties(int device, abi::PropertiesV12* properties) noexcept;
abi::Result listen(void* context, int device, void* handle, void** listen_comm) noexcept;
abi::Result connect(void* context,
                    int device,
                    void* handle,
                    void** send_comm,
                    abi::DeviceHandle** offload) noexcept;
abi::Result accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** offload) noexcept;
abi::Result reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mr) noexcept;
abi::Result dereg_mr(void* comm, void* mr) noexcept;
abi::Result isend(void* comm,
                  void* data,
                  std::size_t bytes,
                  int tag,
                  void* mr,
                  void* profile,
                  void** request) noexcept;
abi::Result irecv(void* comm,
                  int count,
                  void** data,
                  std::size_t* bytes,
                  int* tags,
                  void** mrs,
                  void** profiles,
                  void** request) noexcept;
abi::Result iflush(
    void* comm, int count, void** data, int* bytes, void** mrs, void** request) noexcept;
abi::Result test(void* request, int* done, int* bytes) noexcept;
abi::Result close_send(void* comm) noexcept;
abi::Result close_recv(void* comm) noexcept;
abi::Result close_listen(void* comm) noexcept;
abi::Result finalize(void* context) noexcept;
}  // namespace v12

namespace v11 {
abi::Result get_properties(int device, abi::PropertiesV11* properties) noexcept;
}  // namespace v11

namespace v10 {
abi::Result init(abi::Logger logger, abi::Profiler profiler) noexcept;
abi::Result get_properties(int device, abi::PropertiesV10* properties) noexcept;
abi::Result listen(int device, void* handle, void** listen_comm) noexcept;
abi::Result connect(int device,
                    abi::CommConfig* config,
                    void* handle,
                    void** send_comm,
                    abi::DeviceHandle** offload) noexcept;
}  // namespace v10

namespace v9 {
abi::Result init(abi::Logger logger) noexcept;
abi::Result connect(int device,
                    void* handle,
                    void** send_comm,
                    abi::DeviceHandle** offload) noexcept;
abi::Result isend(
    void* comm, void* data, std::size_t bytes, int tag, void* mr, void** request) noexcept;
abi::Result irecv(void* comm,
                  int count,
                  void** data,
                  std::size_t* bytes,
                  int* tags,
                  void** mrs,
                  void** request) noexcept;
}  // namespace v9

namespace v8 {
abi::Result get_properties(int device, abi::PropertiesV8* properties) noexcept;
abi::Result isend(void* comm, void* data, int bytes, int tag, void* mr, void** request) noexcept;
abi::Result irecv(
    void* comm, int count, void** data, int* bytes, int* tags, void** mrs, void** request) noexcept;
}  // namespace v8

namespace v7 {
abi::Result get_properties(int device, abi::PropertiesV7* properties) noexcept;
abi::Result reg_mr(void* comm, void* data, int bytes, int type, void** mr) noexcept;
}  // namespace v7

namespace v6 {
abi::Result get_properties(int device, abi::PropertiesV6* properties) noexcept;
abi::Result connect(int device, void* handle, void** send_comm) noexcept;
abi::Result accept(void* listen_comm, void** recv_comm) noexcept;
}  // namespace v6

namespace v4 {
abi::Result get_properties(int device, abi::PropertiesV4* properties) noexcept;
abi::Result connect(int device, void* handle, void** send_comm) noexcept;
abi::Result accept(void* listen_comm, void** recv_comm) noexcept;
abi::Result isend(void* comm, void* data, int bytes, void* mr, void** request) noexcept;
abi::Result irecv(void* comm, void* data, int bytes, void* mr, void** request) noexcept;
abi::Result iflush(void* comm, void* data, int bytes, void* mr, void** request) noexcept;
}  // namespace v4

}  // namespace harp::plugin
