/* An NVRTC of CUDA 11.8, which is older than the trainer takes. It tells its version, and has nothing else. */
int nvrtcVersion(int *major, int *minor) {
    *major = 11, *minor = 8;
    return 0;
}
