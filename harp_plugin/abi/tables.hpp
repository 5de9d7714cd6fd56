// The function tables ncclNetPlugin_v4 ... ncclNetPlugin_v12.
//
// Each signature has a name that says since which version it is so; the tables then show at a
// glance what a version changed. docs/harp/abi.md has the contract of each call. In short:
//   * connect() and accept() return success with a null comm for "not yet", and are called again;
//     version 4 alone may block in them.
//   * isend() and irecv() return success with a null request for "not now", and are called again.
//   * iflush() and test() count bytes in int in every version.
//   * reg_mr_dma_buf, get_device_mr, irecv_consumed, make_virtual_device, set_net_attributes may be
//     null; everything else is called unchecked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/properties.hpp"
#include "abi/types.hpp"

namespace harp::abi {

using InitV4 = Result (*)(Logger);
using InitV10 = Result (*)(Logger, Profiler);
using InitV11 =
    Result (*)(void** context, std::uint64_t comm_id, CommConfig* config, Logger, Profiler);

using Devices = Result (*)(int* count);
template <typename Properties>
using GetProperties = Result (*)(int device, Properties* properties);

using ListenV4 = Result (*)(int device, void* handle, void** listen_comm);
using ListenV11 = Result (*)(void* context, int device, void* handle, void** listen_comm);

using ConnectV4 = Result (*)(int device, void* handle, void** send_comm);
using ConnectV7 = Result (*)(int device, void* handle, void** send_comm, DeviceHandle** offload);
using ConnectV10 = Result (*)(
    int device, CommConfig* config, void* handle, void** send_comm, DeviceHandle** offload);
using ConnectV11 =
    Result (*)(void* context, int device, void* handle, void** send_comm, DeviceHandle** offload);

using AcceptV4 = Result (*)(void* listen_comm, void** recv_comm);
using AcceptV7 = Result (*)(void* listen_comm, void** recv_comm, DeviceHandle** offload);

using RegMrV4 = Result (*)(void* comm, void* data, int bytes, int type, void** mr);
using RegMrV8 = Result (*)(void* comm, void* data, std::size_t bytes, int type, void** mr);
using RegMrDmaBuf = Result (*)(
    void* comm, void* data, std::size_t bytes, int type, std::uint64_t offset, int fd, void** mr);
using DeregMr = Result (*)(void* comm, void* mr);

using IsendV4 = Result (*)(void* comm, void* data, int bytes, void* mr, void** request);
using IsendV5 = Result (*)(void* comm, void* data, int bytes, int tag, void* mr, void** request);
using IsendV9 =
    Result (*)(void* comm, void* data, std::size_t bytes, int tag, void* mr, void** request);
using IsendV10 = Result (*)(
    void* comm, void* data, std::size_t bytes, int tag, void* mr, void* profile, void** request);

using IrecvV4 = Result (*)(void* comm, void* data, int bytes, void* mr, void** request);
using IrecvV5 = Result (*)(
    void* comm, int count, void** data, int* bytes, int* tags, void** mrs, void** request);
using IrecvV9 = Result (*)(
    void* comm, int count, void** data, std::size_t* bytes, int* tags, void** mrs, void** request);
using IrecvV10 = Result (*)(void* comm,
                            int count,
                            void** data,
                            std::size_t* bytes,
                            int* tags,
                            void** mrs,
                            void** profiles,
                            void** request);

using IflushV4 = Result (*)(void* comm, void* data, int bytes, void* mr, void** request);
using IflushV5 =
    Result (*)(void* comm, int count, void** data, int* bytes, void** mrs, void** request);

using Test = Result (*)(void* request, int* done, int* bytes);
using Close = Result (*)(void* comm);

using GetDeviceMr = Result (*)(void* comm, void* mr, void** device_mr);
using IrecvConsumed = Result (*)(void* comm, int count, void* request);
template <typename Device>
using MakeVirtualDevice = Result (*)(int* device, Device* parts);
using Finalize = Result (*)(void* context);
using SetNetAttributes = Result (*)(void* context, NetAttributes* attributes);

struct NetV4 {
  const char* name;
  InitV4 init;
  Devices devices;
  GetProperties<PropertiesV4> get_properties;
  ListenV4 listen;
  ConnectV4 connect;
  AcceptV4 accept;
  RegMrV4 reg_mr;
  DeregMr dereg_mr;
  IsendV4 isend;
  IrecvV4 irecv;
  IflushV4 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
};

struct NetV5 {
  const char* name;
  InitV4 init;
  Devices devices;
  GetProperties<PropertiesV6> get_properties;
  ListenV4 listen;
  ConnectV4 connect;
  AcceptV4 accept;
  RegMrV4 reg_mr;
  DeregMr dereg_mr;
  IsendV5 isend;
  IrecvV5 irecv;
  IflushV5 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
};

struct NetV6 {
  const char* name;
  InitV4 init;
  Devices devices;
  GetProperties<PropertiesV6> get_properties;
  ListenV4 listen;
  ConnectV4 connect;
  AcceptV4 accept;
  RegMrV4 reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  DeregMr dereg_mr;
  IsendV5 isend;
  IrecvV5 irecv;
  IflushV5 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
};

/// Versions 7 and 8: the same table but for properties and for how reg_mr counts bytes.
template <typename Properties, typename RegMr>
struct NetV7Layout {
  const char* name;
  InitV4 init;
  Devices devices;
  GetProperties<Properties> get_properties;
  ListenV4 listen;
  ConnectV7 connect;
  AcceptV7 accept;
  RegMr reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  DeregMr dereg_mr;
  IsendV5 isend;
  IrecvV5 irecv;
  IflushV5 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
  GetDeviceMr get_device_mr;
  IrecvConsumed irecv_consumed;
};
using NetV7 = NetV7Layout<PropertiesV7, RegMrV4>;
using NetV8 = NetV7Layout<PropertiesV8, RegMrV8>;

struct NetV9 {
  const char* name;
  InitV4 init;
  Devices devices;
  GetProperties<PropertiesV10> get_properties;
  ListenV4 listen;
  ConnectV7 connect;
  AcceptV7 accept;
  RegMrV8 reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  DeregMr dereg_mr;
  IsendV9 isend;
  IrecvV9 irecv;
  IflushV5 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
  GetDeviceMr get_device_mr;
  IrecvConsumed irecv_consumed;
  MakeVirtualDevice<VirtualDeviceV9> make_virtual_device;
};

struct NetV10 {
  const char* name;
  InitV10 init;
  Devices devices;
  GetProperties<PropertiesV10> get_properties;
  ListenV4 listen;
  ConnectV10 connect;
  AcceptV7 accept;
  RegMrV8 reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  DeregMr dereg_mr;
  IsendV10 isend;
  IrecvV10 irecv;
  IflushV5 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
  GetDeviceMr get_device_mr;
  IrecvConsumed irecv_consumed;
  MakeVirtualDevice<VirtualDeviceV9> make_virtual_device;
};

/// Versions 11 and 12: the same table but for properties and virtual devices.
template <typename Properties, typename Device>
struct NetV11Layout {
  const char* name;
  InitV11 init;
  Devices devices;
  GetProperties<Properties> get_properties;
  ListenV11 listen;
  ConnectV11 connect;
  AcceptV7 accept;
  RegMrV8 reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  DeregMr dereg_mr;
  IsendV10 isend;
  IrecvV10 irecv;
  IflushV5 iflush;
  Test test;
  Close close_send;
  Close close_recv;
  Close close_listen;
  GetDeviceMr get_device_mr;
  IrecvConsumed irecv_consumed;
  MakeVirtualDevice<Device> make_virtual_device;
  Finalize finalize;
  SetNetAttributes set_net_attributes;
};
using NetV11 = NetV11Layout<PropertiesV11, VirtualDeviceV9>;
using NetV12 = NetV11Layout<PropertiesV12, VirtualDeviceV12>;

}  // namespace harp::abi
