// Scales every value above a threshold, in place. The rows of `data` are `stride` floats apart.
//
// scale_over.ptx is this kernel in PTX, for sm_80 and everything after it.
extern "C" __global__ void scale_over(float *data, unsigned rows, unsigned cols, unsigned stride,
                                      float threshold, float factor)
{
    unsigned col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols)
        return;
    for (unsigned row = blockIdx.y; row < rows; row += gridDim.y) {
        float *p = data + (unsigned long long)row * stride + col;
        if (*p > threshold)
            *p *= factor;
    }
}
