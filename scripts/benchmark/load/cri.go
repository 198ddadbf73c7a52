package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const longest = 64 << 20 // bytes of a message

var limits = []grpc.ServerOption{grpc.MaxRecvMsgSize(longest), grpc.MaxSendMsgSize(longest)}

func podConfig(pod int) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "web", Uid: fmt.Sprintf("u%d", pod), Namespace: "default"},
		Labels:   labels(pod), Annotations: annotations,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: parent(pod)},
	}
}

func containerConfig(pod int) *cri.ContainerConfig {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"},
		Image:    &cri.ImageSpec{Image: "registry.local/busybox:1"}, Command: []string{"sleep", "1000"},
		Labels: labels(pod), Annotations: annotations,
		Linux: &cri.LinuxContainerConfig{Resources: &cri.LinuxContainerResources{
			CpuPeriod: 100_000, CpuQuota: 50_000, CpuShares: 512, MemoryLimitInBytes: 1 << 28}},
	}
	for _, variable := range environment(pod) {
		name, value, _ := strings.Cut(variable, "=")
		config.Envs = append(config.Envs, &cri.KeyValue{Key: name, Value: []byte(value)})
	}
	return config
}

// information is the JSON of a verbose status: the config, and the OCI runtime spec, as containerd has them.
func information(pod int, config any) map[string]string {
	cpu := object{"shares": 512, "quota": 50_000, "period": 100_000}
	return map[string]string{"info": string(encoded(object{
		"config": config,
		"runtimeSpec": object{
			"process": object{"env": environment(pod), "args": []string{"sleep", "1000"}},
			"linux": object{
				"cgroupsPath": parent(pod) + "/" + id(pod),
				"resources":   object{"cpu": cpu, "memory": object{"limit": 1 << 28}},
			},
		},
	}))}
}

func serveCRI(listener net.Listener) {
	fake := &fakeRuntime{}
	for pod := range *pods {
		fake.pods = append(fake.pods, &cri.PodSandbox{
			Id: id(pod), State: cri.PodSandboxState_SANDBOX_READY, CreatedAt: 1,
			Metadata: &cri.PodSandboxMetadata{Name: fmt.Sprintf("web-%d", pod), Uid: fmt.Sprint(pod), Namespace: "default"},
			Labels:   labels(pod), Annotations: annotations,
		})
		for number := range *containers {
			fake.containers = append(fake.containers, &cri.Container{
				Id: containerID(pod**containers + number), PodSandboxId: id(pod), CreatedAt: 1,
				Metadata: &cri.ContainerMetadata{Name: "main"}, State: cri.ContainerState_CONTAINER_RUNNING,
				Image: &cri.ImageSpec{Image: "registry.local/web:1"}, ImageRef: "sha256:" + id(pod),
				Labels: labels(pod), Annotations: annotations,
			})
		}
	}
	missing := *listBytes - proto.Size(&cri.ListContainersResponse{Containers: fake.containers})
	for _, each := range fake.containers {
		each.ImageRef += strings.Repeat("x", max(missing, 0)/len(fake.containers))
	}
	server := grpc.NewServer(append(limits, grpc.UnaryInterceptor(fake.answer))...)
	cri.RegisterRuntimeServiceServer(server, cri.UnimplementedRuntimeServiceServer{})
	log.Fatal(server.Serve(listener))
}

type fakeRuntime struct {
	pods       []*cri.PodSandbox
	containers []*cri.Container
	created    atomic.Int64
	logged     atomic.Value // the text of the last request, as for a log
}

// answer is an interceptor, which leaves to the next one what it does not implement.
func (f *fakeRuntime) answer(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	time.Sleep(*delay)
	switch in := in.(type) {
	case *cri.VersionRequest:
		return &cri.VersionResponse{Version: "0.1.0", RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
	case *cri.StatusRequest:
		return &cri.StatusResponse{Status: &cri.RuntimeStatus{}}, nil
	case *cri.ListPodSandboxRequest:
		return &cri.ListPodSandboxResponse{Items: f.pods}, nil
	case *cri.ListContainersRequest:
		return &cri.ListContainersResponse{Containers: f.containers}, nil
	case *cri.PodSandboxStatusRequest:
		pod := number(in.PodSandboxId)
		config := podConfig(pod)
		return &cri.PodSandboxStatusResponse{Info: information(pod, config), Status: &cri.PodSandboxStatus{
			Id: in.PodSandboxId, Metadata: config.Metadata, Labels: config.Labels, Annotations: annotations}}, nil
	case *cri.ContainerStatusRequest:
		pod := number(in.ContainerId) / *containers
		config := containerConfig(pod)
		return &cri.ContainerStatusResponse{Info: information(pod, config), Status: &cri.ContainerStatus{
			Id: in.ContainerId, Metadata: config.Metadata, Labels: config.Labels, Annotations: annotations,
			State: cri.ContainerState_CONTAINER_RUNNING, StartedAt: 1}}, nil
	case *cri.RunPodSandboxRequest:
		f.log(in)
		return &cri.RunPodSandboxResponse{PodSandboxId: id(int(f.created.Add(1)) + 1<<20)}, nil
	case *cri.CreateContainerRequest:
		creates.RLock()
		defer creates.RUnlock()
		f.log(in)
		return &cri.CreateContainerResponse{ContainerId: containerID(int(f.created.Add(1)) + 1<<20)}, nil
	case *cri.StartContainerRequest:
		return &cri.StartContainerResponse{}, nil
	case *cri.UpdateContainerResourcesRequest:
		f.log(in)
		return &cri.UpdateContainerResourcesResponse{}, nil
	case *cri.ExecSyncRequest:
		return &cri.ExecSyncResponse{Stdout: []byte("ready\n")}, nil
	}
	return next(ctx, in)
}

// log formats a request as a runtime's log does, unless it is long.
func (f *fakeRuntime) log(request proto.Message) {
	if proto.Size(request) < 1<<20 {
		f.logged.Store(fmt.Sprint(request))
	}
}

func number(id string) (pod int) {
	fmt.Sscanf(id[1:], "%x", &pod)
	return pod - 1
}

// prepareCRI creates what the calls of a method need.
func prepareCRI(socket, method string) func(worker int) error {
	clients := make([]*grpc.ClientConn, *connections)
	for at := range clients {
		connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(longest)))
		must(err)
		clients[at] = connection
	}
	invoke := func(worker int, method string, in, out proto.Message) error {
		return clients[worker%len(clients)].Invoke(context.Background(), "/runtime.v1.RuntimeService/"+method, in, out)
	}
	run, pod := &cri.RunPodSandboxRequest{Config: podConfig(1)}, &cri.RunPodSandboxResponse{}
	create := &cri.CreateContainerRequest{Config: containerConfig(1), SandboxConfig: run.Config}
	container := &cri.CreateContainerResponse{}
	if strings.Contains(method, "Container") && method != "ListContainers" {
		must(invoke(0, "RunPodSandbox", run, pod))
		create.PodSandboxId = pod.PodSandboxId
		if method != "CreateContainer" {
			must(invoke(0, "CreateContainer", create, container))
		}
	}
	start := &cri.StartContainerRequest{ContainerId: container.ContainerId}
	update := &cri.UpdateContainerResourcesRequest{
		ContainerId: container.ContainerId, Linux: create.Config.Linux.Resources}
	messages, known := map[string][2]proto.Message{
		"Version":                  {&cri.VersionRequest{}, &cri.VersionResponse{}},
		"ListContainers":           {&cri.ListContainersRequest{}, &cri.ListContainersResponse{}},
		"ExecSync":                 {&cri.ExecSyncRequest{ContainerId: "c1", Cmd: []string{"true"}}, &cri.ExecSyncResponse{}},
		"RunPodSandbox":            {run, pod},
		"CreateContainer":          {create, container},
		"StartContainer":           {start, &cri.StartContainerResponse{}},
		"UpdateContainerResources": {update, &cri.UpdateContainerResourcesResponse{}},
	}[method]
	if !known {
		log.Fatalf("unknown method %q", method)
	}
	return func(worker int) error {
		return invoke(worker, method, messages[0], messages[1].ProtoReflect().New().Interface())
	}
}

// The answer of a hook: container_resources with cpuset_cpus "0", container_envs with HOOKED=1.
var changes = []byte("\x12\x03\x32\x01\x30\x22\x0b\x0a\x06HOOKED\x12\x011")

func serveHooks(listener net.Listener) {
	var first sync.Once
	server := grpc.NewServer(append(limits, grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		in, out := &emptypb.Empty{}, &emptypb.Empty{} // all that they have is unknown fields
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		first.Do(func() { fmt.Println("called") })
		time.Sleep(*delay)
		if method, _ := grpc.MethodFromServerStream(stream); strings.Contains(method, "Container") {
			out.ProtoReflect().SetUnknown(changes)
		}
		return stream.SendMsg(out)
	}))...)
	log.Fatal(server.Serve(listener))
}
