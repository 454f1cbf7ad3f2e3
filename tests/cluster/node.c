#include "tests/cluster/node.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const struct node *node, const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", node->name, what, strerror(errno));
    return -1;
}

static int open_tap(struct node *node)
{
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    strcpy(r.ifr_name, "eth0");
    node->tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return node->tap < 0 ? -1 : ioctl(node->tap, TUNSETIFF, &r);
}

static int set_flags_up(int fd, const char *device)
{
    struct ifreq r = {0};
    strcpy(r.ifr_name, device);
    if (ioctl(fd, SIOCGIFFLAGS, &r) != 0)
        return -1;
    r.ifr_flags = (short)(r.ifr_flags | IFF_UP);
    return ioctl(fd, SIOCSIFFLAGS, &r);
}

static int set_inet(int fd, unsigned long request, const char *text)
{
    struct ifreq r = {0};
    struct sockaddr_in in = {.sin_family = AF_INET};
    strcpy(r.ifr_name, "eth0");
    inet_pton(AF_INET, text, &in.sin_addr);
    memcpy(&r.ifr_addr, &in, sizeof in);
    return ioctl(fd, request, &r);
}

static int set_up_device(const struct node *node, int index)
{
    struct ifreq mtu = {.ifr_mtu = NODE_MTU}, hardware = {0};
    char address[20];
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strcpy(mtu.ifr_name, "eth0");
    strcpy(hardware.ifr_name, "eth0");
    hardware.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(hardware.ifr_hwaddr.sa_data, node->mac, 6);
    snprintf(address, sizeof address, "10.77.0.%d", NODE_FIRST_ADDRESS + index);
    int rc = fd < 0 || ioctl(fd, SIOCSIFHWADDR, &hardware) != 0 || ioctl(fd, SIOCSIFMTU, &mtu) != 0 ||
             set_inet(fd, SIOCSIFADDR, address) != 0 || set_inet(fd, SIOCSIFNETMASK, "255.255.255.0") != 0 ||
             set_flags_up(fd, "lo") != 0 || set_flags_up(fd, "eth0") != 0;
    int kept = errno;
    if (fd >= 0)
        close(fd);
    errno = kept;
    return rc ? -1 : 0;
}

int node_open(struct node *node, int index)
{
    *node = (struct node){.mac = {2, 0, 0, 0, 0, (uint8_t)(NODE_FIRST_ADDRESS + index)}};
    snprintf(node->name, sizeof node->name, "node%d", index);
    if (unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0)
        return failed(node, "no namespace");
    if (sethostname(node->name, strlen(node->name)) != 0)
        return failed(node, "its name");
    node->net_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    node->uts_fd = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
    if (node->net_fd < 0 || node->uts_fd < 0)
        return failed(node, "its namespaces");
    if (open_tap(node) != 0)
        return failed(node, "/dev/net/tun");
    if (set_up_device(node, index) != 0)
        return failed(node, "eth0");
    return 0;
}

/* --- who lives there -------------------------------------------------------------------------------------------------------- */

static int lives_in(const char *pid, const struct node *nodes, int n)
{
    char path[300];
    struct stat own, theirs;
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    if (stat(path, &theirs) != 0)
        return 0;
    for (int i = 0; i < n; i++)
        if (fstat(nodes[i].net_fd, &own) == 0 && own.st_ino == theirs.st_ino && own.st_dev == theirs.st_dev)
            return 1;
    return 0;
}

static int kill_once(const struct node *nodes, int n, int spared)
{
    int found = 0;
    struct dirent *e;
    DIR *all = opendir("/proc");
    while (all && (e = readdir(all))) {
        int pid = atoi(e->d_name);
        if (pid <= 1 || pid == getpid() || pid == spared || !lives_in(e->d_name, nodes, n))
            continue;
        kill(pid, SIGKILL);
        found++;
    }
    if (all)
        closedir(all);
    return found;
}

void node_kill_processes(const struct node *nodes, int n, int spared)
{
    for (int i = 0; i < 100 && kill_once(nodes, n, spared); i++)
        usleep(20000);
}
