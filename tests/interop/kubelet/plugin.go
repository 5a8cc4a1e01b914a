// A device plugin for tests: offers the devices that a file lists under a resource name.
//
//	plugin SOCKET-FOLDER RESOURCE FILE
//
// FILE has one device id per line and is read again every 200 ms. The plugin registers again whenever the
// kubelet's socket is another one. It gives containers nothing but the ids, as NVIDIA_VISIBLE_DEVICES.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const period = 200 * time.Millisecond

type plugin struct {
	v1beta1.UnimplementedDevicePluginServer
	file string
}

func (p *plugin) devices() []string {
	text, err := os.ReadFile(p.file)
	if err != nil {
		log.Fatal(err)
	}
	return strings.Fields(string(text))
}

func (p *plugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *v1beta1.Empty, stream v1beta1.DevicePlugin_ListAndWatchServer) error {
	var offered []string
	for ; stream.Context().Err() == nil; time.Sleep(period) {
		ids := p.devices()
		if offered != nil && slices.Equal(ids, offered) {
			continue
		}
		response := &v1beta1.ListAndWatchResponse{}
		for _, id := range ids {
			response.Devices = append(response.Devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		offered = ids
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids},
		})
	}
	return response, nil
}

func register(kubelet, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(connection).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}

// serve offers the devices on a new socket until the kubelet removes it, as it does when it starts.
func serve(folder, resource, file string) error {
	endpoint := strings.ReplaceAll(resource, "/", "_") + ".sock"
	socket := filepath.Join(folder, endpoint)
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, &plugin{file: file})
	go server.Serve(listener)
	defer server.Stop()
	if err := register(filepath.Join(folder, "kubelet.sock"), endpoint, resource); err != nil {
		return err
	}
	log.Printf("registered %s", resource)
	for {
		time.Sleep(period)
		if _, err := os.Stat(socket); err != nil {
			return err
		}
	}
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: plugin SOCKET-FOLDER RESOURCE FILE")
	}
	for ; ; time.Sleep(period) {
		if err := serve(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			log.Print(err)
		}
	}
}
